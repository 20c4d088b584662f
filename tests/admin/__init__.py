"""The screens, asked for by Django's own client. What several of these tests need stands here."""

from django.urls import reverse

from taskharbor_django.models import Attempt, DeadLetter
from tests.factories import job_in, utcnow

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&lt;"


def url(screen, *args, **query):
    """The address of a screen such as "job_changelist"."""
    path = reverse(f"admin:taskharbor_{screen}", args=args)
    return f"{path}?{'&'.join(f'{k}={v}' for k, v in query.items())}" if query else path


def died(fingerprint="f1", *, traceback="Traceback: at line 7", **fields):
    """A dead job with an attempt and a letter of that group."""
    job = job_in("dead", **fields)
    said = {"error": "it broke", "error_class": "BrokenError", "traceback": traceback}
    DeadLetter.objects.filter(open_for=job.pk).update(fingerprint=fingerprint, **said)
    Attempt.objects.create(
        job=job, lease_version=1, number=1, end="failed", finished_at=utcnow(), **said
    )
    return job
