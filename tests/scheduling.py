"""Which tests of a parallel run stay together."""

from xdist.scheduler import LoadScopeScheduling

# A test takes seconds there: a file of them would keep one process busy when the others have ended.
ONE_BY_ONE = ("tests/browser/", "tests/faults/", "tests/process/")


class ByFile(LoadScopeScheduling):
    """
    Let one process run all tests of a file: what they share, a million rows even, is stored once.

    Files stay in the random order that they were collected in.
    """

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid):
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]
