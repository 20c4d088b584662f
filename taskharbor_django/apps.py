from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class TaskHarborConfig(AppConfig):
    name = "taskharbor_django"
    label = "taskharbor"
    verbose_name = _("TaskHarbor")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, failpoints, operations  # noqa: F401  operations is what tasks submit to

        checks.register()
        failpoints.arm_from_environment()
        autodiscover_modules("tasks")
