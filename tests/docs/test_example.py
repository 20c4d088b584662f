"""The example project: its demo as a user runs it, and its own tests."""

import contextlib
import json
import os
import pty
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from io import StringIO
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

import pytest
from django.db import connection

from example_project.demo import worker_process
from example_project.demo.screen import Screen
from example_project.demo.site import Site, SiteTrouble

from .pages import ROOT

PATIENCE = 120


@pytest.fixture
def database_url(tmp_path, django_db_blocker):
    """The address of a database of the test's own, on the server that the run uses."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{tmp_path}/example.sqlite3"
        return
    name = f"example_{secrets.token_hex(6)}"
    with django_db_blocker.unblock():
        try:
            administer(f"CREATE DATABASE {name}")
            yield urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
        finally:
            administer(f"DROP DATABASE IF EXISTS {name}")


def administer(statement):
    with connection._nodb_cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def starting(database_url):
    """What starts manage.py as users do: a command line, and facts for subprocess."""

    def start(*arguments, **environment):
        told = {"DATABASE_URL": database_url, **environment}
        kept = {name: os.environ[name] for name in os.environ.keys() - {"DJANGO_SETTINGS_MODULE"}}
        command = [sys.executable, "-W", "error", "manage.py", *arguments]
        return command, {"cwd": ROOT, "env": {**kept, **told}, "stdin": subprocess.DEVNULL}

    return start


@pytest.fixture
def manage(starting):
    """Run manage.py; answer with what it said."""

    def run(*arguments, **environment):
        command, facts = starting(*arguments, **environment)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE, **facts
        )

    return run


@pytest.fixture
def on_terminal(starting):
    """Run manage.py on a terminal of 80 x 24; answer with what came there, and the exit code."""

    def run(*arguments, watch):
        mine, theirs = pty.openpty()
        size = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": ""}
        command, facts = starting(*arguments, **size)
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, **facts) as process:
            os.close(theirs)
            return all_of(mine, lambda said: watch(said, process)), process.wait(PATIENCE)

    return run


def all_of(terminal, watch):
    """Read until the last program that writes there has ended."""
    said = b""
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        for chunk in chunks(stream):
            said += chunk
            watch(said.decode(errors="ignore"))
    return said.decode().replace("\r\n", "\n")


def chunks(stream):
    with contextlib.suppress(OSError):  # how Linux says that a terminal has ended
        while chunk := stream.read(4096):
            yield chunk


def plain(text):
    """Without colours, and with one space where there are several."""
    return re.sub(" +", " ", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))


def rows_left(manage):
    """Which jobs are held, and the processes of workers."""
    asked = manage("shell", "--verbosity", "0", "--command", LEFT)
    return json.loads(asked.stdout)


LEFT = """
import json
from taskharbor_django.models import Job, Lease, Worker
held, leases = Job.objects.inflight().count(), Lease.objects.count()
print(json.dumps([held, leases, list(Worker.objects.values_list("pid", flat=True))]))
"""


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_demo_runs_again_and_again(manage, on_terminal):
    first = manage("demo", DEMO_PASSWORD="open sesame")
    assert (first.returncode, first.stderr) == (0, "")
    tells_how_jobs_are_stored(first.stdout)
    tells_what_happened(plain(first.stdout))
    assert "\x1b" not in first.stdout
    assert first.stdout.isascii()
    assert "open sesame" not in first.stdout
    assert "3 products, 3 of them new." in first.stdout

    visited = []

    def visit(said, process):
        if not visited and re.search(r"Done, in \d+ s", said):
            visited.append(pages_of(said))
            while len(rows_left(manage)[2]) < 3:
                assert process.poll() is None  # the worker beside is starting
            process.send_signal(signal.SIGINT)

    second, code = on_terminal("demo", "--serve", "0", watch=visit)
    assert code == 0, second
    assert [status for status, _ in visited[0]] == [200, 200, 200]
    assert "Stopped by SIGINT. The worker was stopped, too, and holds nothing." in second
    assert "3 products, 0 of them new." in second
    assert "Cancelled 2 jobs that still waited from earlier runs." in second
    tells_what_happened(plain(second))
    redraws_in_its_place(second)

    held, leases, workers = rows_left(manage)
    assert (held, leases, len(workers)) == (0, 0, 3)
    assert not any(map(is_running, workers))


def pages_of(said):
    """The order, the admin and its style, as a browser would find them."""
    site, order = re.search(r"(http://127\.0\.0\.1:\d+)(/orders/[\w-]+/)", said).groups()
    answers = []
    for path in (order, "/admin/taskharbor/", "/static/taskharbor/admin.css"):
        with urlopen(site + path, timeout=PATIENCE) as page:  # noqa: S310  of this machine
            answers.append((page.status, page.read()))
    return answers


def tells_how_jobs_are_stored(said):
    assert "seen inside the transaction\nleft after the rollback: 0 orders and 0 jobs" in said
    jobs = re.findall(r"job ([0-9a-f-]{36})", said)
    assert len(jobs) == 2
    assert jobs[0] == jobs[1]
    assert "created: False" in said
    assert "InvalidPayload: argument 1 (example_project.shop.models.Order) cannot be stored" in said
    for row in (
        "default critical ready at once 1 charge_card",
        "default normal blocked after others 1 report_stock",
        "mail bulk ready at once 21",
    ):
        assert row in plain(said)


def tells_what_happened(said):
    for row in (
        "1 callback done 1 0 204",
        "1 charge_card done 1 0 charged 119.70 EUR",
        "9 convert done 1 0 59.50, ...",
        "1 count_shelves done 2 1 20 goods; began at shelf 6",
        "1 reorder done 3 2 20 x lantern will come",
        "20 send_offer done 1 0",
        "1 ship done 2 0",
        "1 weigh_parcel done 2 1 1.3 kg",
        "1 print_catalogue cancelled 1 0 stopped at page",
        "1 ask_customs dead: exhausted 2 2 JobTimeout",
        "1 import_prices dead: permanent 1 1 PermanentError: this is no",
        "1 open_upload dead: exhausted 2 2 ChildDied: The child",
        "1 tell_accounting dead: exhausted 3 3 ConnectionError",
        "open_upload 2 system exit:70",
        "receive_goods 1 system signal:SIGKILL",
        "weigh_parcel 1 timeout",
    ):
        assert f"\n{row}" in said
    assert re.search(r"\nask_for_review mail 20\d\d-\d\d-\d\d \d\d:\d\d UTC Ask how it was", said)
    assert re.search(r"\nimport_prices imports 20\d\d-\d\d-\d\d 06:00 UTC at six", said)
    assert re.search(r"\nDone, in \d+ s\.", said)


def redraws_in_its_place(said):
    """Each picture goes back over as many lines as the one before has, and none of them wraps."""
    _, *pictures = re.split(r"\x1b\[(\d+)A", said)
    backs, pictures = list(map(int, pictures[::2])), pictures[1::2]
    drawn = [picture.partition("\x1b[J")[0].split("\n") for picture in pictures]
    assert len(drawn) > 10
    assert [len(lines) for lines in drawn[:-1]] == backs[1:]
    lines = [plain(line) for picture in drawn for line in picture]
    assert max(map(len, lines)) < 80
    assert any(re.match(r"draw_picture \[#+\.+\] \d+ % line \d+ of 64", line) for line in lines)


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_its_worker(manage, starting):
    manage("migrate", "--verbosity", "0")
    mine = ("--username", "demo", "--email", "me@harbor.example")
    manage("createsuperuser", "--noinput", *mine, DJANGO_SUPERUSER_PASSWORD="mine")
    command, facts = starting("demo")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, process_group=0, **pipes, **facts) as process:
        said = ""
        while not re.search(r"draw_picture +\d+ %", said):
            said += process.stdout.readline() or pytest.fail(process.stderr.read())
        os.killpg(process.pid, signal.SIGINT)
        rest, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "a user demo that the demo did not make: left alone" in said
    assert rest.endswith("\nTelling the worker to stop.\n")
    assert complaint.startswith(
        "\nStopped by SIGINT. The worker was stopped, too, and holds nothing."
    )
    held, leases, workers = rows_left(manage)
    assert (held, leases, len(workers)) == (0, 0, 1)
    assert not is_running(*workers)


@pytest.mark.parametrize("address", ["x", "99999", ":80", "", "10.0.0.1:"])
def test_the_demo_says_what_it_cannot_serve(address):
    with pytest.raises(SiteTrouble, match=r"wants a port, or HOST:PORT as in 127\.0\.0\.1:8000"):
        Site(address, worker=None)


def test_the_demo_says_that_its_port_is_taken():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SiteTrouble, match=f"127.0.0.1:{port} cannot be used: Address already"):
            Site(str(port), worker=None)


def test_the_demo_shows_what_a_worker_says_that_cannot_start(manage):
    failed = manage("demo", DATABASE_URL="sqlite://:memory:")
    assert failed.returncode == 1
    assert failed.stderr.startswith("CommandError: The worker ended too early, with exit code 1.")
    assert "is kept in memory" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_a_worker_that_does_not_stop_is_killed(monkeypatch, tmp_path):
    stubborn = tmp_path / "manage.py"
    stubborn.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('no', flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(worker_process, "MANAGE", stubborn)
    monkeypatch.setattr(worker_process, "PATIENCE", 0.5)
    worker = worker_process.WorkerProcess()
    worker.start()
    while "(none)" in (blame := worker.blame("Well?")):
        worker.require_alive()
    assert blame == "Well? The worker's last lines:\n    no"
    assert worker.stop() == -signal.SIGKILL
    assert not is_running(worker.pid)
    assert worker.stop() == -signal.SIGKILL
    assert worker.blame("Well?") == blame


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stdout", "no_color", "color", "colored"),
    [
        (Terminal, "", None, True),
        (Terminal, "1", None, False),
        (Terminal, "", False, False),
        (StringIO, "", None, False),
        (StringIO, "1", True, True),
    ],
)
def test_the_demo_has_colors_on_a_terminal_only(monkeypatch, stdout, no_color, color, colored):
    monkeypatch.setenv("NO_COLOR", no_color)
    screen = Screen(stdout := stdout(), color=color)
    screen.heading("Jobs")
    screen.table(("queue", "jobs"), [("default", 3)])
    screen.good("Done.")
    assert ("\x1b" in stdout.getvalue()) is colored


@pytest.mark.parametrize(
    ("stdout", "told", "color", "redraws"),
    [
        (Terminal, {}, None, True),
        (Terminal, {"NO_COLOR": "1"}, None, False),
        (Terminal, {"TERM": "dumb"}, None, False),
        (Terminal, {}, False, False),
        (StringIO, {}, None, False),
        (StringIO, {}, True, False),
    ],
)
def test_the_demo_redraws_on_a_terminal_only(monkeypatch, stdout, told, color, redraws):
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | told).items():
        monkeypatch.setenv(name, value)
    assert Screen(stdout(), color=color).redraws is redraws


def test_the_demo_says_that_no_server_answers(manage):
    pytest.importorskip("psycopg")
    failed = manage("demo", DATABASE_URL="postgres://me:sesame@127.0.0.1:1/shop")
    assert failed.returncode == 1
    assert failed.stderr.startswith("CommandError: The database shop on 127.0.0.1 cannot be used")
    assert "sesame" not in failed.stdout + failed.stderr


def test_the_demo_says_that_its_file_is_locked(manage, tmp_path):
    path = tmp_path / "busy.sqlite3"
    busy = sqlite3.connect(path, isolation_level=None)
    busy.execute("PRAGMA journal_mode=WAL")
    busy.execute("BEGIN IMMEDIATE")
    failed = manage("demo", DATABASE_URL=f"sqlite:///{path}?timeout=1")
    busy.close()
    assert failed.returncode == 1
    assert "database is locked\nAnother program is writing to it." in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_example_has_no_warning_and_no_missing_migration(manage):
    checked = manage("check", "--database", "default", "--fail-level", "WARNING")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert manage("makemigrations", "--check", "--dry-run").returncode == 0


@pytest.mark.slow
def test_the_example_passes_its_own_tests(manage):
    tested = manage("test", "example_project")
    assert tested.returncode == 0, tested.stderr
    assert "OK" in tested.stderr


def test_without_debug_the_example_wants_a_secret_key(manage):
    refused = manage("check", DEBUG="off")
    assert "SECRET_KEY" in refused.stderr
    assert manage("check", DEBUG="off", SECRET_KEY=secrets.token_hex()).returncode == 0
