import secrets

from django.db import models
from django.urls import reverse


class Product(models.Model):
    sku = models.SlugField("SKU", unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)
    visits = models.PositiveIntegerField(default=0, editable=False)
    picture = models.BinaryField(null=True, editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self):
        return self.name

    def get_absolute_url(self):
        return reverse("shop:product", args=[self.sku])


def new_reference():
    return f"order-{secrets.token_hex(4)}"


class Order(models.Model):
    """What somebody bought. Jobs about it carry its reference as their correlation id."""

    reference = models.SlugField(unique=True, default=new_reference, editable=False)
    product = models.ForeignKey(Product, models.PROTECT, related_name="orders")
    quantity = models.PositiveIntegerField(default=1)
    email = models.EmailField()
    placed_at = models.DateTimeField(auto_now_add=True)
    paid_at = models.DateTimeField(null=True, editable=False)
    picked_at = models.DateTimeField(null=True, editable=False)
    review_job = models.UUIDField(null=True, editable=False)

    class Meta:
        ordering = ("-placed_at",)

    def __str__(self):
        return self.reference

    def get_absolute_url(self):
        return reverse("shop:order", args=[self.reference])

    @property
    def total(self):
        return self.product.price * self.quantity


class Mail(models.Model):
    """The outbox: a letter that a real shop would hand to its mail server."""

    to = models.EmailField()
    subject = models.CharField(max_length=200)
    body = models.TextField(blank=True)
    written_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "outbox"
        ordering = ("-written_at",)

    def __str__(self):
        return f"{self.subject} ({self.to})"
