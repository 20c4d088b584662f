"""
The demo, step by step.

Each step is a function of one `Run`, in which the earlier ones leave what the later ones need.
"""

import math
import os
import secrets
import shlex
import time
from collections import Counter
from decimal import Decimal

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Max

from example_project.shop import orders, tasks
from example_project.shop.models import Order, Product
from taskharbor_django import Priority, TaskHarborError, cancel
from taskharbor_django.lifecycle import WAITING, JobState
from taskharbor_django.models import Job, Worker

from . import samples, telling
from .receiver import Receiver
from .site import DEFAULT
from .watching import short
from .worker_process import NAME
from .working import work

USER, EMAIL = "demo", "demo@shop.example"
GOODS = {
    "anchor": ("Anchor", "249.00", 12),
    "rope": ("Rope, 20 m", "39.90", 80),
    "lantern": ("Lantern", "59.50", 10),
}


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
        listen,
        work,
        telling.show_ends,
        telling.show_attempts,
        telling.require_expected_ends,
        telling.show_details,
        telling.show_rest,
        show_ways_on,
        serve,
    )


# -- database and shop -----------------------------------------------------------------------------


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
    """Make what the shop needs: products, and somebody who may enter the admin."""
    run.screen.heading("Shop")
    run.since = Job.objects.aggregate(newest=Max("created_at"))["newest"]
    with transaction.atomic():
        made = [_product(sku, *facts) for sku, facts in GOODS.items()]
    run.screen.say(f"{len(made)} products, {sum(made)} of them new.")
    if any(made):
        run.screen.say("A signal receiver enqueued a job to draw each new one.")
    run.screen.say(_superuser())


def _product(sku, name, price, stock):
    """Make a product, or fill its shelf again, which earlier runs have emptied."""
    facts = {"name": name, "price": Decimal(price), "stock": stock}
    return Product.objects.update_or_create(sku=sku, defaults=facts)[1]


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
    """Cancel what earlier runs left waiting; stop their workers, if any was left by a crash."""
    Worker.objects.filter(name=NAME, stopped_at=None).update(request=Worker.Request.STOP)
    ours = Job.objects.filter(state__in=WAITING, task__startswith=f"{tasks.__name__}.")
    if run.since is not None:
        earlier = ours.filter(created_at__lte=run.since)
        left = cancel(earlier.values_list("pk", flat=True))
        run.screen.say(f"Cancelled {left.moved} jobs that still waited from earlier runs.")


# -- enqueueing ------------------------------------------------------------------------------------


def place_order(run):
    run.screen.heading("An order and its jobs, in one transaction")
    rope = Product.objects.get(sku="rope")
    run.order = orders.place(rope, quantity=3, email=samples.CUSTOMERS[0])
    kinds = run.jobs.filter(correlation_id=run.order.reference).values_list("task", flat=True)
    run.screen.say(f"{run.order}: {run.order.quantity} x {rope}, {run.order.total} EUR")
    run.screen.say(f"committed with it: {', '.join(sorted(map(short, kinds)))}")
    run.screen.say("(pick was enqueued by enqueue_on_commit, the others as rows beside the order)")


def roll_back(run):
    run.screen.heading("Another order, rolled back")
    with transaction.atomic():
        anchor = Product.objects.get(sku="anchor")
        order = orders.place(anchor, quantity=1, email=samples.CUSTOMERS[1])
        during = Job.objects.filter(correlation_id=order.reference).count()
        transaction.set_rollback(True)
    after = Job.objects.filter(correlation_id=order.reference).count()
    kept = Order.objects.filter(reference=order.reference).count()
    run.screen.say(f"{order}: 1 order and {during} jobs, seen inside the transaction")
    run.screen.say(f"left after the rollback: {kept} orders and {after} jobs")


@transaction.atomic
def enqueue_every_kind(run):
    run.screen.heading("Jobs of every other kind, in one transaction")
    lantern = Product.objects.get(sku="lantern")
    run.samples = {it.handle.id: it for it in samples.every_kind(lantern, run.order)}
    names = {job.pk: short(job.task) for job in run.jobs}
    kinds = Counter((names[key], sample.shows) for key, sample in run.samples.items())
    kinds["send_offer", "enqueue_many; bulk priority, lifetime 2 days"] = samples.offers("lantern")
    run.screen.table(("jobs", "task", "shows"), ((kinds[kind], *kind) for kind in kinds))


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
    run.screen.heading("What is stored now")
    kinds = Counter(map(_kind, run.jobs.order_by("queue", "priority", "available_at", "seq")))
    head = ("queue", "priority", "state", "may run", "jobs", "task")
    run.screen.table(head, ((*kind[:4], count, kind[4]) for kind, count in kinds.items()))


def _kind(job):
    now = "after others" if job.state == JobState.BLOCKED else "at once"
    when = f"{job.run_at:%Y-%m-%d %H:%M} UTC" if job.run_at else now
    return job.queue, _priority(job.priority), job.state, when, short(job.task)


def _priority(rank):
    return Priority(rank).name.lower() if rank in list(Priority) else str(rank)


def listen(run):
    """Be somebody who wants a callback, unless the settings name another."""
    if settings.SHOP_CALLBACK_URL:
        return
    receiver = Receiver()
    run.receiver = receiver if receiver.start() else None
    if run.receiver is None:
        receiver.close()
        return
    run.screen.heading("Somebody wants to be told when a parcel has gone")
    run.screen.say(f"A server of the demo's own, with a certificate of its own: {receiver.url}")
    run.screen.say("The worker hears of it by CALLBACK_URL, and trusts it for that.")


# -- the end ---------------------------------------------------------------------------------------


def _manage(run):
    """How to call manage.py for the same database; no password of a server is ever said."""
    url = os.environ.get("DATABASE_URL", "")
    if url.startswith("sqlite:"):
        return f"DATABASE_URL={shlex.quote(url)} python manage.py"
    if url:
        run.screen.say("with the same DATABASE_URL:")
    return "python manage.py"


def show_ways_on(run):
    site = run.site.url if run.site else f"http://{DEFAULT}"
    run.screen.heading("Look for yourself")
    manage = _manage(run)
    run.screen.say(f"{manage} shell")
    run.screen.say("    >>> from taskharbor_django.models import DeadLetter, Job")
    run.screen.say(f"    >>> Job.objects.filter(correlation_id={run.order.reference!r}).in_line()")
    run.screen.say('    >>> print(DeadLetter.objects.latest("died_at").traceback)')
    run.screen.say("served from here, until Ctrl-C:" if run.site else f"{manage} runserver")
    run.screen.say(f"    {site}{run.order.get_absolute_url()}  the order and its jobs")
    run.screen.say(f"    {site}/admin/taskharbor/  the admin, for {USER} with the password above")
    run.screen.say("a worker beside it:" if run.site else f"{manage} runworker")
    run.screen.say("    runs what you enqueue there, until Ctrl-C")
    seconds = time.monotonic() - run.started
    more = "" if run.site else " With --serve it stays, as site and worker."
    run.screen.good(f"\nDone, in {seconds:.0f} s. Run it again as often as you like.{more}")


def serve(run):
    """Serve the shop and its admin, and run what is enqueued there, if that was asked for."""
    if run.site is not None:
        run.serving = True
        run.start_worker()
        run.site.serve()
