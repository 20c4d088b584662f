"""
The rules of the driver contract as tests, for any driver.

Derive a test class from DriverConformance, fill in the hooks of Harness, and run it with pytest or,
mixed with unittest.TestCase, with unittest. Each test takes a new driver from `make_driver`.
"""

from .cancelling import CancelRules
from .closing import ClosingRules
from .concurrency import ConcurrencyRules
from .ending import AckRules, FailRules
from .enqueue import EnqueueRules
from .fencing import FencingRules
from .giving_back import ReleaseRules, RetryRules
from .harness import Harness
from .idempotency import IdempotencyRules
from .leases import LeaseRules
from .ordering import OrderingRules
from .reclaim import ReclaimRules
from .repeats import RepeatRules
from .reserve import ReserveRules
from .settle import SettleRules
from .terms import Stored
from .volume import VolumeRules

__all__ = ["DriverConformance", "Stored"]


class DriverConformance(
    EnqueueRules,
    IdempotencyRules,
    OrderingRules,
    ReserveRules,
    ReclaimRules,
    LeaseRules,
    FencingRules,
    AckRules,
    RetryRules,
    FailRules,
    ReleaseRules,
    SettleRules,
    RepeatRules,
    CancelRules,
    ClosingRules,
    VolumeRules,
    ConcurrencyRules,
    Harness,
):
    """Every rule; a driver that passes them all can be put behind the core."""
