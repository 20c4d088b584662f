"""A job of each kind: what it shows, and how it must end."""

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from example_project.shop import reports, tasks
from taskharbor_django import JobHandle, Priority
from taskharbor_django.operations.schedules import run_schedule_now

CUSTOMERS = [f"customer{number}@shop.example" for number in range(1, 21)]
CURRENCIES = ("EUR", "CHF", "DKK") * 3


@dataclass(frozen=True)
class Sample:
    shows: str
    handle: JobHandle
    end: str = "done"
    """the state, and for a dead job the reason"""


def runs_well(product):
    yield Sample("reports its progress", draw(product))
    for currency in CURRENCIES:
        yield Sample("async", tasks.convert.enqueue(product.price, currency))
    yield Sample("in a process of its own", tasks.pack.enqueue([6, 5, 4, 3, 3, 2, 1], limit=8))
    yield Sample("of a schedule, each night and now", run_schedule_now(tasks.close_day.name))
    yield Sample("not kept after its end", tasks.count_visit.enqueue(product.pk), end="gone")


def draw(product):
    return tasks.draw_picture.using(tags={"sku": product.sku}).enqueue(product.pk)


def runs_again(product):
    yield Sample("a supplier who is busy twice", tasks.reorder.enqueue(product.pk, quantity=20))
    yield Sample("fails halfway, goes on from a checkpoint", tasks.count_shelves.enqueue(10))
    yield Sample("a timeout in a thread", tasks.weigh_parcel.enqueue())
    goods = tasks.receive_goods.enqueue(product.pk, 5)
    yield Sample("atomic; its process is killed after it has written", goods)


def fails(order):
    always, never = tasks.tell_accounting.enqueue(order.pk), tasks.ask_customs.enqueue(order.pk)
    yield Sample("fails each time, 3 attempts", always, end="dead: exhausted")
    yield Sample("async; a timeout each time, 2 attempts", never, end="dead: exhausted")
    unreadable = tasks.import_prices.enqueue("%PDF-1.7")
    yield Sample("can never succeed, 1 attempt", unreadable, end="dead: permanent")
    bomb, good = tasks.open_upload.enqueue("bomb.zip"), tasks.open_upload.enqueue("boat.zip")
    yield Sample("poison: kills its process, 2 attempts", bomb, end="dead: exhausted")
    yield Sample("its neighbour", good)
    stale = tasks.send_offer.using(lifetime=timedelta(milliseconds=1))
    late = stale.enqueue(CUSTOMERS[0], "anchor")
    yield Sample("its lifetime is over before it runs", late, end="dead: lifetime")


def is_stopped():
    endless = tasks.print_catalogue.enqueue(600)
    yield Sample("cancelled while it runs", endless, end="cancelled")


def follows():
    *members, finalizer = reports.order_stock_report("owner@shop.example").jobs
    for member in members:
        yield Sample("a chord: side by side, ...", JobHandle.of(member.pk))
    yield Sample("... and what takes their results", JobHandle.of(finalizer.pk))


def waits():
    six = timezone.now().replace(hour=6, minute=0, second=0, microsecond=0) + timedelta(days=1)
    early = tasks.import_prices.using(run_at=six, queue="imports", priority=Priority.HIGH)
    yield Sample("at six tomorrow, on a queue of its own", early.enqueue("lantern 54.90"), "later")


def every_kind(product, order):
    """Enqueue them all; yield what was asked for."""
    yield from runs_well(product)
    yield from runs_again(product)
    yield from fails(order)
    yield from is_stopped()
    yield from follows()
    yield from waits()


def offers(sku):
    """Enqueue many at once; return how many."""
    return tasks.send_offer.enqueue_many((email, sku) for email in CUSTOMERS)
