"""The verbs: one file each, one transaction each."""

from ..tasks import submit_through
from . import enqueue as _enqueue
from .cancel import Cancelled, cancel
from .handle import JobHandle

# Tasks stand below this layer and must not import it: it offers itself to them.
submit_through(_enqueue)

__all__ = ["Cancelled", "JobHandle", "cancel"]
