"""
One task of each kind.

A task is given ids and plain values, never rows: it may run much later, and after a crash a second
time. So each of these looks at the rows anew, and does once what must be done once.
"""

import asyncio
from datetime import timedelta
from decimal import Decimal

from django.db.models import F
from django.utils import timezone

from taskharbor_django import Backoff, PermanentError, Priority, TemporaryError, task

from . import packing, pictures, supplier
from .models import Mail, Order, Product

RATES = {"EUR": Decimal("1"), "CHF": Decimal("0.93"), "DKK": Decimal("7.46")}
LOW_STOCK = 5


@task
def confirm_order(order_id: int) -> None:
    """Write the confirmation of an order."""
    order = Order.objects.select_related("product").get(pk=order_id)
    Mail.objects.get_or_create(
        to=order.email,
        subject=f"Your order {order.reference}",
        defaults={"body": f"{order.quantity} x {order.product}, {order.total} EUR. Thank you!"},
    )


@task(priority=Priority.CRITICAL, timeout=timedelta(seconds=30))
def charge_card(order_id: int, amount: Decimal) -> str:
    """Take the money, once: an order that is paid stays as it is."""
    Order.objects.filter(pk=order_id, paid_at=None).update(paid_at=timezone.now())
    return f"charged {amount} EUR"


@task(atomic=True, priority=Priority.HIGH)
def book_stock(order_id: int) -> None:
    """Take goods off the shelf, in one transaction with the job's end: exactly once."""
    order = Order.objects.get(pk=order_id)
    shelf = Product.objects.filter(pk=order.product_id)
    if not shelf.filter(stock__gte=order.quantity).update(stock=F("stock") - order.quantity):
        raise PermanentError(f"{order} wants more than there is", code="sold_out")
    if shelf.filter(stock__lt=LOW_STOCK).exists():
        # However many orders find the shelf low, the supplier hears of it once a day.
        key = f"{order.product_id}-{timezone.now():%Y-%m-%d}"
        reorder.using(idempotency_key=key).enqueue(order.product_id, quantity=20)


@task(queue="warehouse")
def pick(order_id: int) -> None:
    """Tell the warehouse, which has a queue and workers of its own."""
    Order.objects.filter(pk=order_id, picked_at=None).update(picked_at=timezone.now())


@task(queue="mail", priority=Priority.LOW)
def ask_for_review(order_id: int) -> None:
    """Ask how it was; enqueued with a delay."""
    order = Order.objects.select_related("product").get(pk=order_id)
    Mail.objects.get_or_create(to=order.email, subject=f"How is your {order.product}?")


@task(takes_context=True)
def draw_picture(context, product_id: int) -> None:
    """Draw a product line by line, and say how far it is."""
    product = Product.objects.get(pk=product_id)
    rows = []
    for done, row in enumerate(pictures.rows(product.sku), start=1):
        context.check_cancelled()
        context.set_progress(100 * done // pictures.SIZE, f"line {done} of {pictures.SIZE}")
        rows.append(row)
    Product.objects.filter(pk=product_id).update(picture=pictures.png(rows))


@task(takes_context=True, max_attempts=5, backoff=Backoff(initial=1, maximum=60, jitter="full"))
def reorder(context, product_id: int, *, quantity: int) -> str:
    """Order from a supplier who is often busy; each try is later than the one before."""
    sku = Product.objects.values_list("sku", flat=True).get(pk=product_id)
    try:
        return supplier.order(sku, quantity, reference=str(context.job_id), call=context.attempt)
    except supplier.Busy as busy:
        raise TemporaryError(str(busy), retry_after=busy.seconds) from busy


@task
def import_prices(document: str) -> int:
    """Read a price list; one that cannot be read never can, so no try is wasted on it."""
    try:
        prices = {sku: Decimal(price) for sku, price in map(str.split, document.splitlines())}
    except (ValueError, ArithmeticError) as problem:
        raise PermanentError("this is no price list", code="unreadable") from problem
    return sum(Product.objects.filter(sku=sku).update(price=prices[sku]) for sku in prices)


@task
async def convert(amount: Decimal, currency: str) -> Decimal:
    """Look up a rate; thousands of these wait at the same time in one process."""
    await asyncio.sleep(0.05)
    return (amount * RATES[currency]).quantize(Decimal("0.01"))


@task(isolation="process", timeout=timedelta(minutes=1))
def pack(weights: list[int], limit: int) -> list[list[int]]:
    """Find the fewest boxes: hard work, in a process of its own that can be killed."""
    return packing.fewest_boxes(weights, limit)


@task(keep=False, priority=Priority.BULK)
def count_visit(product_id: int) -> None:
    """Count a visitor; nobody asks for this job later, so its row goes with its end."""
    Product.objects.filter(pk=product_id).update(visits=F("visits") + 1)


@task(queue="mail", priority=Priority.BULK, lifetime=timedelta(days=2))
def send_offer(email: str, sku: str) -> None:
    """Write an offer, unless two days have passed and it is stale."""
    Mail.objects.get_or_create(to=email, subject=f"Today only: {Product.objects.get(sku=sku)}")
