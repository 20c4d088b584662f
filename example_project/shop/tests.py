"""
Tests of the shop: what is enqueued when, and the tasks called as the functions that they are.

    python manage.py test example_project
"""
# ruff: noqa: PT009, PT027  Django's test classes have assertions of their own

import asyncio
import os
from datetime import timedelta
from decimal import Decimal
from unittest import mock
from uuid import uuid4

from django.db import transaction
from django.test import TestCase
from django.urls import reverse

from taskharbor_django import PermanentError, Snooze, TemporaryError
from taskharbor_django.models import Job, Schedule
from taskharbor_django.testing import (
    assert_enqueued,
    assert_not_enqueued,
    capture_on_commit,
    drain,
)

from . import orders, outside, packing, pictures, reports, tasks
from .models import Mail, Order, Product


class Context:
    """What a worker would hand to a task that takes the context."""

    def __init__(self, attempt=1, checkpoint=None):
        self.job_id, self.attempt, self.progress = uuid4(), attempt, []
        self.checkpoint = checkpoint

    def check_cancelled(self):
        pass

    def set_progress(self, percent, message=""):
        self.progress.append((percent, message))

    def save_checkpoint(self, value):
        self.checkpoint = value


def at_once():
    """Nothing outside takes any time."""
    return mock.patch.multiple(outside, STROKE=0, PAGE=0, SHELF=0, RATE=0)


class ShopTestCase(TestCase):
    def setUp(self):
        self.rope = Product.objects.create(
            sku="rope", name="Rope", price=Decimal("39.90"), stock=10
        )

    def order(self, quantity=2):
        return orders.place(self.rope, quantity=quantity, email="a@shop.example")

    def waiting(self, **conditions):
        jobs = Job.objects.filter(**conditions).values_list("task", flat=True)
        return sorted(name.rpartition(".")[2] for name in jobs)


class PlacingTests(ShopTestCase):
    def test_an_order_brings_its_jobs(self):
        with self.captureOnCommitCallbacks(execute=True):
            order = self.order()
        expected = ["ask_for_review", "book_stock", "charge_card", "confirm_order", "pick"]
        self.assertEqual(self.waiting(correlation_id=order.reference), expected)
        self.assertEqual(self.waiting(queue="warehouse"), ["pick"])

    def test_an_order_that_is_rolled_back_takes_its_jobs_along(self):
        with transaction.atomic():
            order = self.order()
            self.assertEqual(len(self.waiting(correlation_id=order.reference)), 4)
            transaction.set_rollback(True)
        self.assertEqual(self.waiting(correlation_id=order.reference), [])

    def test_a_new_product_is_drawn_and_a_changed_one_is_not(self):
        self.rope.save()
        self.assertEqual(self.waiting(), ["draw_picture"])

    def test_the_review_can_be_cancelled_once(self):
        order = self.order()
        self.assertTrue(orders.forget_review(order))
        self.assertEqual(Job.objects.get(pk=order.review_job).state, "cancelled")
        self.assertFalse(orders.forget_review(order))


class WorkingTests(ShopTestCase):
    """The whole way, with jobs that run in the test: no worker is there."""

    def test_an_order_is_paid_picked_and_shipped(self):
        with capture_on_commit():
            order = self.order()
        assert_enqueued(tasks.charge_card, args=[order.pk], idempotency_key=order.reference)
        assert_not_enqueued(tasks.ship)
        with at_once():
            drain(until=timedelta(seconds=5))
        order.refresh_from_db()
        self.assertLessEqual(order.paid_at, order.picked_at)
        shipped = assert_enqueued(tasks.ship, args=[order.pk], state="done")
        self.assertEqual(shipped.result, f"{order} is on board")
        self.assertEqual(self.waiting(state="scheduled"), ["ask_for_review"])


class PageTests(ShopTestCase):
    def test_a_visitor_can_buy_and_follow_the_jobs(self):
        self.assertContains(self.client.get(reverse("shop:home")), "Rope")
        bought = self.client.post(self.rope.get_absolute_url(), {"quantity": 1, "email": "b@c.de"})
        order = Order.objects.get()
        self.assertRedirects(bought, order.get_absolute_url())
        self.assertContains(self.client.get(order.get_absolute_url()), "charge_card")

    def test_a_wrong_form_stores_nothing(self):
        answer = self.client.post(self.rope.get_absolute_url(), {"quantity": 1, "email": "nobody"})
        self.assertContains(answer, "valid email")
        self.assertEqual(self.waiting(), ["draw_picture"])

    def test_a_visit_is_counted_by_a_job(self):
        self.client.get(self.rope.get_absolute_url())
        self.assertEqual(self.waiting(), ["count_visit", "draw_picture"])

    def test_a_picture_is_there_once_it_is_drawn(self):
        address = reverse("shop:picture", args=["rope"])
        self.assertEqual(self.client.get(address).status_code, 404)
        with at_once():
            tasks.draw_picture(Context(), self.rope.pk)
        self.assertTrue(self.client.get(address).content.startswith(b"\x89PNG"))

    def test_the_review_is_forgotten_by_a_button(self):
        order = self.order()
        address = reverse("shop:forget-review", args=[order.reference])
        self.assertContains(self.client.post(address, follow=True), "We will not ask.")


class TaskTests(ShopTestCase):
    """Each twice, where a crash could make a worker do so."""

    def test_an_order_is_confirmed_and_reviewed_once(self):
        order = self.order()
        for _ in range(2):
            tasks.confirm_order(order.pk)
            tasks.ask_for_review(order.pk)
        self.assertEqual(Mail.objects.count(), 2)

    def test_an_order_is_charged_and_picked_once(self):
        order = self.order()
        for _ in range(2):
            self.assertEqual(tasks.charge_card(order.pk, order.total), "charged 79.80 EUR")
            tasks.pick(order.pk)
        order.refresh_from_db()
        self.assertLess(order.paid_at, order.picked_at)
        self.assertEqual(self.waiting().count("ship"), 1)

    def test_a_parcel_waits_for_a_boat(self):
        order = self.order()
        with self.assertRaises(Snooze):
            tasks.ship(Context(attempt=1), order.pk)
        self.assertEqual(tasks.ship(Context(attempt=2), order.pk), f"{order} is on board")

    def test_stock_is_booked_and_a_low_one_reordered(self):
        order = self.order(quantity=4)
        tasks.book_stock(order.pk)
        self.assertNotIn("reorder", self.waiting())
        tasks.book_stock(order.pk)
        tasks.book_stock(self.order(quantity=1).pk)
        self.rope.refresh_from_db()
        self.assertEqual(self.rope.stock, 1)
        self.assertEqual(self.waiting().count("reorder"), 1)

    def test_what_is_sold_out_fails_for_good(self):
        with self.assertRaises(PermanentError) as caught:
            tasks.book_stock(self.order(quantity=11).pk)
        self.assertEqual(caught.exception.code, "sold_out")

    def test_goods_are_received(self):
        with mock.patch("os.kill") as kill:
            tasks.receive_goods(Context(attempt=1), self.rope.pk, 5)
        kill.assert_called_once()
        self.rope.refresh_from_db()
        self.assertEqual(self.rope.stock, 15)

    def test_a_busy_supplier_is_asked_again(self):
        with self.assertRaises(TemporaryError) as caught:
            tasks.reorder(Context(attempt=2), self.rope.pk, quantity=5)
        self.assertEqual(caught.exception.retry_after, 0.4)
        answer = tasks.reorder(Context(attempt=3), self.rope.pk, quantity=5)
        self.assertIn("5 x rope will come", answer)

    def test_the_ledger_never_answers(self):
        with self.assertRaises(ConnectionError):
            tasks.tell_accounting(self.order().pk)

    def test_drawing_and_printing_report_their_progress(self):
        drawing, printing = Context(), Context()
        with at_once():
            tasks.draw_picture(drawing, self.rope.pk)
            tasks.print_catalogue(printing, pages=4)
        self.assertEqual(len(drawing.progress), pictures.SIZE)
        self.assertEqual(drawing.progress[-1], (100, "line 64 of 64"))
        self.assertEqual(printing.progress[1], (50, "page 2 of 4"))

    def test_counting_goes_on_where_it_was_interrupted(self):
        context = Context()
        with at_once(), self.assertRaises(TemporaryError):
            tasks.count_shelves(context, 4)
        again = Context(attempt=2, checkpoint=context.checkpoint)
        with at_once():
            self.assertEqual(tasks.count_shelves(again, 4), "8 goods; began at shelf 3")

    def test_a_scale_hangs_once(self):
        self.assertEqual(tasks.weigh_parcel(Context(attempt=2)), "1.3 kg")

    async def test_customs_keep_silent(self):
        with self.assertRaises(TimeoutError):
            await asyncio.wait_for(tasks.ask_customs(1), timeout=0.01)

    def test_some_uploads_end_the_process(self):
        with mock.patch("os._exit") as leave:
            self.assertEqual(tasks.open_upload("boat.zip"), "boat.zip: 3 pictures")
            leave.assert_not_called()
            tasks.open_upload("bomb.zip")
            leave.assert_called_once()

    def test_the_day_is_closed_each_night_once(self):
        self.order()
        self.assertEqual(tasks.close_day(), tasks.close_day())
        self.assertEqual(Mail.objects.count(), 1)
        row = Schedule.objects.get(name=tasks.close_day.name)
        self.assertEqual((row.cron, row.time_zone), ("0 3 * * *", "Europe/Berlin"))

    def test_who_wants_to_know_is_called_back_when_a_parcel_has_gone(self):
        url = "https://hooks.example.com/parcels"
        allowed = {"CALLBACK_HOSTS": ["hooks.example.com"], "CALLBACK_SECRET": "s"}
        with self.settings(SHOP_CALLBACK_URL=url, TASKHARBOR=allowed):
            tasks.pick(self.order().pk)
        self.assertEqual(Job.objects.get(task=tasks.ship.name).callback_url, url)

    def test_prices_are_imported_and_nonsense_is_poison(self):
        self.assertEqual(tasks.import_prices("rope 29.90\nanchor 1"), 1)
        for poison in ("%PDF-1.7", "rope cheap", "rope 1 2"):
            with self.assertRaises(PermanentError):
                tasks.import_prices(poison)

    def test_a_visit_and_an_offer_leave_a_row(self):
        tasks.count_visit(self.rope.pk)
        tasks.send_offer("a@shop.example", "rope")
        self.rope.refresh_from_db()
        self.assertEqual((self.rope.visits, Mail.objects.count()), (1, 1))

    async def test_money_is_converted(self):
        with at_once():
            self.assertEqual(await tasks.convert(Decimal(10), "DKK"), Decimal("74.60"))

    def test_a_stock_report_waits_for_all_products(self):
        workflow = reports.order_stock_report("owner@shop.example")
        self.assertEqual([job.state for job in workflow.jobs], ["ready", "blocked"])
        self.assertEqual(tasks.value_stock(self.rope.pk), Decimal("399.00"))
        total = tasks.report_stock([Decimal(1), Decimal(2)], to="owner@shop.example")
        self.assertEqual((total, Mail.objects.get().body), (3, "3 EUR"))

    def test_boxes_are_few(self):
        packed = tasks.pack([6, 5, 4, 3, 3, 2, 1], limit=8)
        self.assertEqual((len(packed["boxes"]), packed["pid"]), (3, os.getpid()))
        with self.assertRaises(ValueError):
            packing.fewest_boxes([9], limit=8)
