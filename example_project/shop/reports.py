"""What the owner of the shop wants to know."""

from taskharbor_django import WorkflowHandle, chord

from .models import Product
from .tasks import report_stock, value_stock


def order_stock_report(to: str) -> WorkflowHandle:
    """Value each product in a job of its own, side by side; then add them up."""
    products = Product.objects.order_by("sku").values_list("pk", flat=True)
    members = [value_stock.s(product) for product in products]
    return chord(members, report_stock.s(to=to)).enqueue(name="stock report")
