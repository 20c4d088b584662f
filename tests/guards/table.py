"""All guards."""

from . import storage, worker, workflows

GUARDS = (*storage.GUARDS, *worker.GUARDS, *workflows.GUARDS)
