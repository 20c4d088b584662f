from django.db.models.signals import post_save
from django.dispatch import receiver

from .models import Product
from .tasks import draw_picture


@receiver(post_save, sender=Product)
def draw_new_product(*, instance, created, raw=False, **_):
    """Enqueue in the transaction that saves: no product, no job."""
    if created and not raw:
        draw_picture.using(tags={"sku": instance.sku}).enqueue(instance.pk)
