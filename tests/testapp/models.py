from django.db import models


class Ledger(models.Model):
    """The rows of a user's own, written beside jobs to see what commits with what."""

    name = models.CharField(max_length=200, unique=True)
    amount = models.IntegerField(default=0)

    def __str__(self):
        return f"{self.name}: {self.amount}"
