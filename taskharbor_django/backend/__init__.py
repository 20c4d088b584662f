"""
The backend for Django's own task API; TASKS names it `taskharbor_django.backend.TaskHarborBackend`.

Tasks made by `django.tasks.task` become jobs with every promise that jobs have. Importable before
the app registry is ready, because tasks modules are.
"""

from .backend import TaskHarborBackend
from .declared import HarborTask, options
from .results import HarborTaskContext

__all__ = ["HarborTask", "HarborTaskContext", "TaskHarborBackend", "options"]
