"""
For the tests of a project: run what was enqueued, here and now, and say what should have been.

Works on the test's own connection and inside its transaction, so in `TestCase` as well as in
`TransactionTestCase`. Importing it also lets jobs live by the time that freezegun has frozen.
"""

from .asserting import (
    aassert_enqueued,
    aassert_not_enqueued,
    assert_enqueued,
    assert_not_enqueued,
    capture_on_commit,
)
from .draining import Drained, adrain, drain
from .inline import run_inline
from .travel import travel

__all__ = [
    "Drained",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "adrain",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_on_commit",
    "drain",
    "run_inline",
    "travel",
]
