from django.db import models


class Ledger(models.Model):
    """The rows of a user's own, written beside jobs to see what commits with what."""

    name = models.CharField(max_length=200, unique=True)
    amount = models.IntegerField(default=0)

    def __str__(self):
        return f"{self.name}: {self.amount}"


class Trail(models.Model):
    """A line that a job of `fault_tasks` has left behind; rows are added and never changed."""

    mark = models.CharField(max_length=20)
    job = models.UUIDField()
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    pid = models.IntegerField()
    at = models.FloatField()

    def __str__(self):
        return f"{self.mark} {self.job} {self.fence}"


class Move(models.Model):
    """A change of a job's row, noted by triggers that `tests.faults.history` makes."""

    job = models.UUIDField()
    before = models.CharField(max_length=9)
    after = models.CharField(max_length=9)
    fence = models.BigIntegerField()
    fences = models.IntegerField()
    executions = models.IntegerField()
    attempts = models.IntegerField()
    losses = models.IntegerField()
    held_until = models.FloatField(null=True)
    at = models.FloatField()

    def __str__(self):
        return f"{self.job} {self.before} -> {self.after}"
