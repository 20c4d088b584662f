"""
The demo, step by step.

Each step is a function of one `Run`, in which the earlier ones leave what the later ones need.
"""

import math
import os
import secrets
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Count, Max
from django.utils import timezone

from taskharbor_django import Priority, TaskHarborError, cancel
from taskharbor_django.lifecycle import WAITING
from taskharbor_django.models import Job

from . import orders, tasks
from .models import Order, Product
from .screen import Screen

USER, EMAIL = "demo", "demo@shop.example"
CUSTOMERS = [f"customer{number}@shop.example" for number in range(1, 21)]
GOODS = {
    "anchor": ("Anchor", "249.00", 12),
    "rope": ("Rope, 20 m", "39.90", 80),
    "lantern": ("Lantern", "59.50", 4),
}


@dataclass
class Run:
    """One run of the demo."""

    screen: Screen
    since: datetime | None = None
    """when the newest job of before was stored"""
    order: Order | None = None

    @property
    def jobs(self):
        """The jobs that this run stored."""
        return Job.objects.filter(created_at__gt=self.since) if self.since else Job.objects.all()


def steps():
    """What the demo does, in this order."""
    return (
        migrate,
        fill_shop,
        clear_away,
        place_order,
        roll_back,
        enqueue_every_kind,
        repeat_a_key,
        refuse,
        show_jobs,
        show_ways_on,
    )


def migrate(run):
    run.screen.heading("Database")
    # A database that is down or busy says so here, before the checks of migrate misread that.
    with transaction.atomic():
        connection.ensure_connection()
    call_command("migrate", verbosity=0, interactive=False, skip_checks=False)
    version = ".".join(map(str, connection.get_database_version()))
    name = connection.settings_dict["NAME"]
    run.screen.say(f"{connection.display_name} {version}, {name}: all tables are there.")


def fill_shop(run):
    """Make what the shop needs, once: products, and somebody who may enter the admin."""
    run.screen.heading("Shop")
    run.since = Job.objects.aggregate(newest=Max("created_at"))["newest"]
    with transaction.atomic():
        made = [_product(sku, *facts) for sku, facts in GOODS.items()]
    run.screen.say(f"{len(made)} products, {sum(made)} of them new.")
    if any(made):
        run.screen.say("A signal receiver enqueued a job to draw each new one.")
    run.screen.say(_superuser())


def _product(sku, name, price, stock):
    facts = {"name": name, "price": Decimal(price), "stock": stock}
    return Product.objects.get_or_create(sku=sku, defaults=facts)[1]


def _superuser():
    """Make the demo's own user, or give it a new password; somebody else's stays as it is."""
    password = os.environ.get("DEMO_PASSWORD") or secrets.token_urlsafe(9)
    users = get_user_model()._default_manager
    user = users.filter(username=USER).first()
    if user is None:
        user = users.create_superuser(USER, EMAIL)
    elif user.email != EMAIL:
        return f"There is a user {USER} that the demo did not make: left alone."
    user.set_password(password)
    user.save()
    shown = "the one in DEMO_PASSWORD" if os.environ.get("DEMO_PASSWORD") else password
    return f"Superuser {USER}, password: {shown}"


def clear_away(run):
    """Cancel what earlier runs left waiting."""
    ours = Job.objects.filter(state__in=WAITING, task__startswith=f"{tasks.__name__}.")
    if run.since is not None:
        earlier = ours.filter(created_at__lte=run.since)
        left = cancel(earlier.values_list("pk", flat=True))
        run.screen.say(f"Cancelled {left.cancelled} jobs that still waited from earlier runs.")


def place_order(run):
    run.screen.heading("An order and its jobs, in one transaction")
    rope = Product.objects.get(sku="rope")
    run.order = orders.place(rope, quantity=3, email=CUSTOMERS[0])
    kinds = run.jobs.filter(correlation_id=run.order.reference).values_list("task", flat=True)
    run.screen.say(f"{run.order}: {run.order.quantity} x {rope}, {run.order.total} EUR")
    run.screen.say(f"committed with it: {', '.join(sorted(map(short, kinds)))}")
    run.screen.say("(pick was enqueued by enqueue_on_commit, the others as rows beside the order)")


def roll_back(run):
    run.screen.heading("Another order, rolled back")
    with transaction.atomic():
        anchor = Product.objects.get(sku="anchor")
        order = orders.place(anchor, quantity=1, email=CUSTOMERS[1])
        during = Job.objects.filter(correlation_id=order.reference).count()
        transaction.set_rollback(True)
    after = Job.objects.filter(correlation_id=order.reference).count()
    kept = Order.objects.filter(reference=order.reference).count()
    run.screen.say(f"{order}: 1 order and {during} jobs, seen inside the transaction")
    run.screen.say(f"left after the rollback: {kept} orders and {after} jobs")


@transaction.atomic
def enqueue_every_kind(run):
    run.screen.heading("One job of each other kind, in one transaction")
    lantern = Product.objects.get(sku="lantern")
    for text, handle in _every_kind(lantern):
        run.screen.say(f"{str(handle.id)[:8]}  {text}")
    offers = ((email, lantern.sku) for email in CUSTOMERS)
    count = tasks.send_offer.enqueue_many(offers)
    run.screen.say(f"{count} jobs   enqueue_many: {count} offers, priority bulk, lifetime 2 days")


def _every_kind(product):
    """Enqueue jobs; yield what each shows, and its handle."""
    tomorrow = timezone.now().replace(hour=6, minute=0, second=0, microsecond=0) + timedelta(days=1)
    early = tasks.import_prices.using(run_at=tomorrow, queue="imports", priority=Priority.HIGH)
    yield (
        "draw_picture: reports its progress",
        tasks.draw_picture.using(tags={"sku": product.sku}).enqueue(product.pk),
    )
    yield (
        "reorder: a flaky supplier, up to 5 attempts, exponential backoff with full jitter",
        tasks.reorder.enqueue(product.pk, quantity=20),
    )
    yield (
        "import_prices: poison, fails for good and is buried at once",
        tasks.import_prices.enqueue("%PDF-1.7"),
    )
    yield "convert: an async task, with a Decimal", tasks.convert.enqueue(Decimal("59.50"), "DKK")
    yield "pack: in a process of its own", tasks.pack.enqueue([6, 5, 4, 3, 3, 2, 1], limit=8)
    yield "count_visit: not kept after its end", tasks.count_visit.enqueue(product.pk)
    yield (
        "import_prices: at six tomorrow, on another queue, before others there",
        early.enqueue("lantern 54.90"),
    )


def repeat_a_key(run):
    run.screen.heading("The same idempotency key twice")
    first = run.jobs.get(idempotency_key=run.order.reference)
    charge = tasks.charge_card.using(idempotency_key=run.order.reference)
    second = charge.enqueue(run.order.pk, run.order.total)
    run.screen.say(f"charge_card with the order: job {first.pk}")
    run.screen.say(f"and at a second click:      job {second.id}, created: {second.created}")


def refuse(run):
    """Show that bad input is an error where it was made, and stores nothing."""
    run.screen.heading("Refused, each with nothing stored")
    before = Job.objects.count()
    calls = {
        "confirm_order.enqueue(order)": lambda: tasks.confirm_order.enqueue(run.order),
        "confirm_order.enqueue()": tasks.confirm_order.enqueue,
        "pack.enqueue([7, nan], limit=8)": lambda: tasks.pack.enqueue([7, math.nan], limit=8),
        'pick.using(queue="no spaces")': lambda: tasks.pick.using(queue="no spaces").enqueue(1),
    }
    for code, call in calls.items():
        run.screen.say(code)
        try:
            call()
        except TaskHarborError as error:
            run.screen.say(f"    {type(error).__name__}: {error}")
    run.screen.say(f"jobs before: {before}, after: {Job.objects.count()}")


def show_jobs(run):
    run.screen.heading("What this run stored")
    kinds = Counter(map(_kind, run.jobs.order_by("queue", "priority", "available_at", "seq")))
    head = ("queue", "priority", "state", "may run", "jobs", "task")
    run.screen.table(head, ((*kind[:4], count, kind[4]) for kind, count in kinds.items()))
    states = Job.objects.order_by("state").values_list("state").annotate(Count("pk"))
    run.screen.say()
    run.screen.say("All jobs: " + ", ".join(f"{count} {state}" for state, count in states))


def _kind(job):
    when = f"{job.run_at:%Y-%m-%d %H:%M} UTC" if job.run_at else "at once"
    return job.queue, _priority(job.priority), job.state, when, short(job.task)


def _priority(rank):
    return Priority(rank).name.lower() if rank in list(Priority) else str(rank)


def short(task):
    """A task's name without its module."""
    return task.rpartition(".")[2]


def show_ways_on(run):
    site = "http://127.0.0.1:8000"
    run.screen.heading("Look for yourself")
    run.screen.say("python manage.py shell")
    run.screen.say("    >>> from taskharbor_django.models import Job")
    run.screen.say(f"    >>> Job.objects.filter(correlation_id={run.order.reference!r}).in_line()")
    run.screen.say("python manage.py runserver")
    run.screen.say(f"    {site}{run.order.get_absolute_url()}  the order and its jobs")
    run.screen.say(f"    {site}/admin/  the admin, for {USER} with the password above")
    run.screen.good("\nDone. Run it again as often as you like.")
