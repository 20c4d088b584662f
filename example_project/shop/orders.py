"""What happens when somebody buys something."""

from datetime import timedelta

from django.db import transaction

from taskharbor_django import cancel

from .models import Order
from .tasks import ask_for_review, book_stock, charge_card, confirm_order, pick


@transaction.atomic
def place(product, *, quantity, email):
    """Store an order together with the jobs that follow from it: all of them or nothing."""
    order = Order.objects.create(product=product, quantity=quantity, email=email)
    about = {"correlation_id": order.reference, "tags": {"sku": product.sku}}
    # A second click on "buy" for the same order finds the job of the first.
    charge_card.using(idempotency_key=order.reference, **about).enqueue(order.pk, order.total)
    book_stock.using(**about).enqueue(order.pk)
    confirm_order.using(**about).enqueue(order.pk)
    review = ask_for_review.using(delay=timedelta(days=14), **about).enqueue(order.pk)
    order.review_job = review.id
    order.save(update_fields=["review_job"])
    # Nothing is written before the commit; the others are rows of this transaction already.
    pick.using(**about).enqueue_on_commit(order.pk)
    return order


def forget_review(order):
    """Cancel the job that would ask for a review; False when it is too late."""
    return bool(order.review_job) and not cancel([order.review_job]).left
