from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class TaskHarborConfig(AppConfig):
    name = "taskharbor_django"
    label = "taskharbor"
    verbose_name = _("TaskHarbor")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, failpoints, webhooks  # noqa: F401  registers the task of callbacks
        from .operations import schedules  # with what tasks submit to

        checks.register()
        failpoints.arm_from_environment()
        autodiscover_modules("tasks")
        post_migrate.connect(schedules.after_migrate, sender=self)
        self._find_django_tasks()

    def _find_django_tasks(self) -> None:
        """Where Django's own task API is served from here, its tasks are ours to run."""
        from django.conf import settings

        backends = getattr(settings, "TASKS", None) or {}
        if any("taskharbor_django" in str(it.get("BACKEND")) for it in backends.values()):
            from .backend.declared import discover

            discover()
