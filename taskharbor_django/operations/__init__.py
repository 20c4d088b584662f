"""The verbs: one file each, one transaction each."""

from ..tasks import submit_through
from . import enqueue as _enqueue
from .batches import Left, Moved
from .bury import bury
from .cancel import cancel
from .discard import discard
from .erase import erase
from .handle import JobHandle
from .pause import pause, resume
from .replay import replay
from .requeue import requeue
from .selection import Selection
from .update import run_now, update
from .workers import ask_workers
from .workflow import WorkflowHandle

# Tasks stand below this layer and must not import it: it offers itself to them.
submit_through(_enqueue)

__all__ = [
    "JobHandle",
    "Left",
    "Moved",
    "Selection",
    "WorkflowHandle",
    "ask_workers",
    "bury",
    "cancel",
    "discard",
    "erase",
    "pause",
    "replay",
    "requeue",
    "resume",
    "run_now",
    "update",
]
