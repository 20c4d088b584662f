from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop"
    label = "shop"
    verbose_name = "Shop"

    def ready(self):
        from . import receivers  # noqa: F401  the import connects them
