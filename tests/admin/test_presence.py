"""By what others judge whether a worker is there: the lease that it was started with."""

from datetime import timedelta

import pytest
from django.core.management import call_command

from taskharbor_django.models import Worker
from taskharbor_django.operations import figures
from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.presence import Presence
from taskharbor_django.worker.worker import Worker as Process
from tests.factories import utcnow

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def started(**options):
    """The row that a worker with these options leaves behind."""
    process = Process(WorkerOptions(listen=False, **options))
    Presence(process).start()
    return Worker.objects.get(pk=process.options.id)


def health():
    """The exit code of the command for probes."""
    with pytest.raises(SystemExit) as ended:
        call_command("taskharbor", "health")
    return ended.value.code


def test_a_worker_says_how_long_its_lease_is():
    assert started(lease=HOUR, heartbeat=HOUR / 3).lease == HOUR


@pytest.mark.parametrize(
    ("lease", "heard", "alive"),
    [(HOUR, HOUR / 2, True), (HOUR, 2 * HOUR, False), (HOUR / 60, HOUR / 30, False)],
)
def test_a_worker_is_silent_by_its_own_lease(lease, heard, alive):
    row = started(lease=lease)
    Worker.objects.update(last_beat_at=utcnow() - heard)
    row.refresh_from_db()
    assert figures.living([row], utcnow()) == ([row] if alive else [])


def test_health_counts_a_worker_with_a_long_lease(capsys):
    started(lease=HOUR)
    Worker.objects.update(last_beat_at=utcnow() - HOUR / 2)
    call_command("taskharbor", "health")
    assert "workers" in capsys.readouterr().out
    Worker.objects.update(last_beat_at=utcnow() - 2 * HOUR)
    assert health() == 1
