"""
One task of each kind.

A task is given ids and plain values, never rows: it may run much later, and after a crash a second
time. So each of these looks at the rows anew, and does once what must be done once.
"""

import os
from datetime import timedelta
from decimal import Decimal

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from taskharbor_django import (
    Backoff,
    PermanentError,
    Priority,
    Snooze,
    TemporaryError,
    schedule,
    task,
)

from . import outside, packing, pictures
from .models import Mail, Order, Product

LOW_STOCK = 5
# So that nobody has to wait for the demo; what depends on others wants minutes, not tenths.
SOON = Backoff(initial=0.2, maximum=2)

# -- what follows from an order --------------------------------------------------------------------


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


@task(atomic=True, queue="warehouse")
def pick(order_id: int) -> None:
    """Tell the warehouse; the job that follows is stored with this one's end, or not at all."""
    if Order.objects.filter(pk=order_id, picked_at=None).update(picked_at=timezone.now()):
        # Where somebody wants to know, a signed callback tells them that the parcel has gone.
        ship.using(callback_url=settings.SHOP_CALLBACK_URL).enqueue(order_id)


@task(takes_context=True, queue="warehouse")
def ship(context, order_id: int) -> str:
    """Hand the parcel over; with no boat in port, sleep on it. That is no failure."""
    if not outside.boat_is_in(call=context.attempt):
        raise Snooze(0.5)
    return f"{Order.objects.get(pk=order_id)} is on board"


@task(queue="mail", priority=Priority.LOW)
def ask_for_review(order_id: int) -> None:
    """Ask how it was; enqueued with a delay."""
    order = Order.objects.select_related("product").get(pk=order_id)
    Mail.objects.get_or_create(to=order.email, subject=f"How is your {order.product}?")


# -- again and again -------------------------------------------------------------------------------


@schedule(cron="0 3 * * *", time_zone="Europe/Berlin")
@task(queue="mail", priority=Priority.LOW)
def close_day() -> str:
    """Write down how many orders there are, every night at three."""
    orders = Order.objects.count()
    subject = f"{orders} orders by {timezone.localdate()}"
    Mail.objects.get_or_create(to="owner@shop.example", subject=subject)
    return subject


# -- progress, checkpoints, cancelling -------------------------------------------------------------


@task(takes_context=True)
def draw_picture(context, product_id: int) -> None:
    """Draw a product line by line, and say how far it is."""
    product = Product.objects.get(pk=product_id)
    rows = []
    for done, row in enumerate(pictures.rows(product.sku), start=1):
        context.check_cancelled()
        context.set_progress(100 * done // pictures.SIZE, f"line {done} of {pictures.SIZE}")
        rows.append(row)
        outside.draw_line()
    Product.objects.filter(pk=product_id).update(picture=pictures.png(rows))


@task(takes_context=True)
def print_catalogue(context, pages: int) -> None:
    """Print for as long as it takes, and stop between two pages when somebody asks for it."""
    for page in range(1, pages + 1):
        context.check_cancelled()
        outside.print_page()
        context.set_progress(100 * page // pages, f"page {page} of {pages}")


@task(takes_context=True, backoff=SOON)
def count_shelves(context, shelves: int) -> str:
    """Count what is there; a retry goes on from the checkpoint that each shelf leaves."""
    first, goods = context.checkpoint or (1, 0)
    for shelf in range(first, shelves + 1):
        goods += outside.goods_on(shelf)
        context.save_checkpoint((shelf + 1, goods))
        context.set_progress(100 * shelf // shelves, f"shelf {shelf} of {shelves}")
        if context.attempt == 1 and shelf == shelves // 2:
            raise TemporaryError(f"the phone rang after shelf {shelf}")
    return f"{goods} goods; began at shelf {first}"


# -- failures --------------------------------------------------------------------------------------


@task(takes_context=True, max_attempts=5, backoff=SOON)
def reorder(context, product_id: int, *, quantity: int) -> str:
    """Order from a supplier who is often busy, and says when to try again."""
    sku = Product.objects.values_list("sku", flat=True).get(pk=product_id)
    reference = str(context.job_id)[:8]
    try:
        return outside.order_goods(sku, quantity, reference=reference, call=context.attempt)
    except outside.Busy as busy:
        raise TemporaryError(str(busy), retry_after=busy.seconds) from busy


@task(max_attempts=3, backoff=SOON)
def tell_accounting(order_id: int) -> None:
    """Book an order somewhere else; each try is later than the one before, up to the last."""
    outside.book_amount(Order.objects.get(pk=order_id).reference)


@task
def import_prices(document: str) -> int:
    """Read a price list; one that cannot be read never can, so no try is wasted on it."""
    try:
        prices = {sku: Decimal(price) for sku, price in map(str.split, document.splitlines())}
    except (ValueError, ArithmeticError) as problem:
        raise PermanentError("this is no price list", code="unreadable") from problem
    return sum(Product.objects.filter(sku=sku).update(price=prices[sku]) for sku in prices)


@task(takes_context=True, timeout=timedelta(seconds=0.5), backoff=SOON)
def weigh_parcel(context) -> str:
    """Read a scale that may hang: after its time the thread is stopped, and tried again."""
    return outside.weigh(call=context.attempt)


@task(timeout=timedelta(seconds=0.3), max_attempts=2, backoff=SOON)
async def ask_customs(order_id: int) -> None:  # noqa: ARG001  there is nobody to tell it to
    """Wait for an answer, but not for ever."""
    await outside.customs_answer()


# -- async tasks and processes ---------------------------------------------------------------------


@task
async def convert(amount: Decimal, currency: str) -> Decimal:
    """Look up a rate; thousands of these wait at the same time in one process."""
    return (amount * Decimal(await outside.rate_of(currency))).quantize(Decimal("0.01"))


@task(isolation="process", timeout=timedelta(minutes=1))
def pack(weights: list[int], limit: int) -> dict:
    """Find the fewest boxes: hard work, in a process of its own that can be killed."""
    return {"boxes": packing.fewest_boxes(weights, limit), "pid": os.getpid()}


@task(isolation="process", max_attempts=2, backoff=SOON)
def open_upload(name: str) -> str:
    """Open what a customer sent; a poisonous one kills this process, and nobody else's."""
    return outside.unpack(name)


@task(takes_context=True, isolation="process", atomic=True, backoff=SOON)
def receive_goods(context, product_id: int, quantity: int) -> None:
    """Put goods on the shelf; a crash after that, before the job's end, takes them off again."""
    Product.objects.filter(pk=product_id).update(stock=F("stock") + quantity)
    outside.power_cut(call=context.attempt)


# -- a report: many at once, then one --------------------------------------------------------------


@task
def value_stock(product_id: int) -> Decimal:
    """Say what the goods of a product are worth; all products at once, see reports.py."""
    product = Product.objects.get(pk=product_id)
    return product.price * product.stock


@task
def report_stock(values: list[Decimal], to: str) -> Decimal:
    """Add up what the others found; it is given their results, in order, when all are done."""
    total = sum(values, Decimal())
    subject = f"Stock report, {len(values)} products"
    Mail.objects.get_or_create(to=to, subject=subject, defaults={"body": f"{total} EUR"})
    return total


# -- jobs that nobody will miss --------------------------------------------------------------------


@task(keep=False, priority=Priority.BULK)
def count_visit(product_id: int) -> None:
    """Count a visitor; nobody asks for this job later, so its row goes with its end."""
    Product.objects.filter(pk=product_id).update(visits=F("visits") + 1)


@task(queue="mail", priority=Priority.BULK, lifetime=timedelta(days=2))
def send_offer(email: str, sku: str) -> None:
    """Write an offer, unless two days have passed and it is stale."""
    Mail.objects.get_or_create(to=email, subject=f"Today only: {Product.objects.get(sku=sku)}")
