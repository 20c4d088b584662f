"""Load many jobs at once, to see the admin as an operator does in an incident."""

import itertools
from decimal import Decimal
from time import monotonic

from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction
from django.utils import timezone

from example_project.demo import seeds
from example_project.shop.models import Order, Product
from taskharbor_django.models import Attempt, DeadLetter, Job, QueueMinute

TELL_EACH = 5.0


class Command(BaseCommand):
    help = "Load 200,000 jobs and 5,000 dead letters into the database of the example."

    def add_arguments(self, parser):
        parser.add_argument("--jobs", type=int, default=200_000, help="how many that are not dead")
        parser.add_argument("--dead", type=int, default=5_000, help="how many dead letters")
        parser.add_argument("--seed", type=int, default=7, help="another number, another day")

    def handle(self, **options):
        if options["jobs"] < 0 or options["dead"] < 0:
            raise CommandError("There is no negative number of jobs.")
        started, now = monotonic(), timezone.now()
        chance = seeds.chance_of(options["seed"])
        with transaction.atomic():
            _shop()
            self._load(seeds.jobs(options["jobs"], now, chance), options["jobs"], "jobs")
            self._load(seeds.dead(options["dead"], now, chance), options["dead"], "dead letters")
            _count(now, chance)
        if connection.vendor == "postgresql":
            _analyze()
        took = monotonic() - started
        self.stdout.write(
            f"{options['jobs']:,} jobs and {options['dead']:,} dead letters in {took:.1f} s."
        )

    def _load(self, rows, number, what):
        """Store them, and say now and then how far it is."""
        loaded, told = 0, monotonic()
        while batch := list(itertools.islice(rows, seeds.BATCH)):
            for alike in _by_kind(batch):
                store(alike)
            loaded += len(batch)
            if monotonic() - told >= TELL_EACH:
                told = monotonic()
                self.stdout.write(f"{loaded:,} of {number:,} {what} ...")
                self.stdout.flush()


def _shop():
    """What the jobs are about."""
    facts = {"name": "Anchor", "price": Decimal("12.50"), "stock": 1_000}
    product, _ = Product.objects.get_or_create(sku="anchor", defaults=facts)
    if not Order.objects.filter(pk=1).exists():
        Order.objects.create(pk=1, product=product, email="customer@shop.example")


def _by_kind(batch):
    """Rows of one model each; what is dead has its letter and its attempts beside it."""
    if not isinstance(batch[0], tuple):
        return [batch]
    jobs, letters, attempts = zip(*batch, strict=True)
    return [jobs, letters, list(itertools.chain.from_iterable(attempts))]


def _count(now, chance):
    """Write the statistics anew: what died in an earlier load of this hour is dead still."""
    letters = DeadLetter.objects.filter(died_at__gte=now - seeds.HOUR)
    rows = list(seeds.minutes(now, chance, letters.only("queue", "died_at", "attempts")))
    QueueMinute.objects.filter(worker=seeds.WORKER).delete()
    QueueMinute.objects.bulk_create(rows)


def store(rows):
    """Write rows of one model, only the columns that any of them fills: four times as fast."""
    model = type(rows[0])
    fields = [
        field
        for field in model._meta.concrete_fields
        if not (field.primary_key and rows[0].pk is None)
        and any(getattr(row, field.attname) is not None for row in rows)
    ]
    values = [
        [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
        for row in rows
    ]
    quote = connection.ops.quote_name
    into = f"{quote(model._meta.db_table)} ({', '.join(quote(f.column) for f in fields)})"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
        else:
            places = ", ".join(["%s"] * len(fields))
            cursor.executemany(f"INSERT INTO {into} VALUES ({places})", values)  # noqa: S608  names from the models, values as parameters


def _analyze():
    """So that the planner knows of them at once."""
    with connection.cursor() as cursor:
        for model in (Job, DeadLetter, Attempt, QueueMinute):
            cursor.execute(f"ANALYZE {connection.ops.quote_name(model._meta.db_table)}")
