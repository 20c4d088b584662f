"""How long a part of a worker waits for a database that says nothing."""

import socket
import threading
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from taskharbor_django.worker import lines as module
from taskharbor_django.worker.lines import CONNECT, LONGEST, MOST_DOUBLINGS, SHORTEST, Lines
from taskharbor_django.worker.trouble import Trouble


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(module, "steady", time)
    return time


@pytest.fixture
def ends():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine, theirs


def wrapper(raw=None, vendor="postgresql", **options):
    return SimpleNamespace(connection=raw, vendor=vendor, settings_dict={"OPTIONS": options})


def wait_for_nothing(lines, silent, time, seconds):
    """Wait on a socket until it is cut, looking each time that a second has passed."""
    raw = silent.connection
    with lines.waiting(wrapper=silent):
        for _ in range(seconds):
            time.now += 1
            lines.cut_silent()
        raw.setblocking(False)
        if raw.recv(1) == b"":
            raise ConnectionError("closed")


def test_a_silent_connection_is_cut_and_the_error_says_so(time, ends):
    with pytest.raises(OperationalError, match="no answer in 10 s, the connection was cut"):
        wait_for_nothing(Lines("default", 10), wrapper(ends[0]), time, 10)


def test_it_says_so_also_when_its_thread_is_quicker_than_who_cuts_it(time, ends, monkeypatch):
    lines, left, told = Lines("default", 10), threading.Event(), []
    cut = module.cut

    def cut_and_dawdle(silent):
        done = cut(silent)
        left.wait(0.2)  # it has noticed by then
        return done

    def wait():
        try:
            with lines.waiting(wrapper=wrapper(ends[0])):
                waits.set()
                ends[0].recv(1)
                raise ConnectionError("closed")  # noqa: TRY301  as a client would
        except (ConnectionError, OperationalError) as error:
            told.append(str(error))
        left.set()

    waits = threading.Event()
    monkeypatch.setattr(module, "cut", cut_and_dawdle)
    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(10)
    time.now += 10
    lines.cut_silent()
    thread.join(10)
    assert told == ["no answer in 10 s, the connection was cut"]


def test_a_connection_is_left_alone_until_then(time, ends):
    with pytest.raises(BlockingIOError):
        wait_for_nothing(Lines("default", 10), wrapper(ends[0]), time, 9)


def test_nobody_is_cut_who_does_not_wait_any_more(time, ends):
    lines = Lines("default", 10)
    with lines.waiting(wrapper=wrapper(ends[0])):
        pass
    time.now += 1000
    lines.cut_silent()
    ends[0].sendall(b"here")
    assert ends[1].recv(4) == b"here"


def test_after_a_cut_the_next_wait_is_longer_and_after_a_success_shorter(time):
    lines, lasted = Lines("default", 10), []
    for _ in range(MOST_DOUBLINGS + 2):
        mine, theirs = socket.socketpair()
        with mine, theirs, pytest.raises(OperationalError) as cut:
            wait_for_nothing(lines, wrapper(mine), time, 1000)
        lasted.append(int(str(cut.value).split()[3]))
    assert lasted == [10, 20, 40, 80, 80]
    for _ in range(MOST_DOUBLINGS + 2):
        with lines.waiting(wrapper=wrapper()):
            pass
    mine, theirs = socket.socketpair()
    with mine, theirs, pytest.raises(OperationalError, match="no answer in 10 s"):
        wait_for_nothing(lines, wrapper(mine), time, 10)


@pytest.mark.parametrize(("asked", "kept"), [(0.1, SHORTEST), (7, 7), (1000, LONGEST)])
def test_a_wait_is_neither_too_short_nor_too_long(time, ends, asked, kept):
    with pytest.raises(OperationalError, match=f"no answer in {kept:.0f} s"):
        wait_for_nothing(Lines("default", asked), wrapper(ends[0]), time, 60)


def test_a_wait_inside_another_does_not_make_it_longer(time, ends):
    lines, silent = Lines("default", 10), wrapper(ends[0])

    def wait():
        with lines.waiting(wrapper=silent):
            time.now += 8
            wait_for_nothing(lines, silent, time, 3)

    with pytest.raises(OperationalError, match="no answer in 10 s"):
        wait()


@pytest.mark.parametrize(
    "silent", [wrapper(), wrapper(object(), vendor="sqlite"), wrapper(object())]
)
def test_where_there_is_nothing_to_cut_an_error_stays_what_it_is(time, silent):
    lines = Lines("default", 10)

    def wait():
        with lines.waiting(wrapper=silent):
            time.now += 60
            lines.cut_silent()
            raise KeyError

    with pytest.raises(KeyError):
        wait()


def test_each_thread_waits_for_itself(time, ends):
    lines, inside = Lines("default", 10), threading.Event()
    leave = threading.Event()

    def wait():
        with lines.waiting(wrapper=wrapper(ends[0])):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    inside.wait(30)
    time.now += 8
    with lines.waiting(wrapper=wrapper(ends[1])):
        time.now += 4
        lines.cut_silent()
        assert ends[1].recv(1) == b""
    leave.set()
    thread.join()


@pytest.mark.parametrize(
    ("silent", "limit"),
    [
        (wrapper(), CONNECT),
        (wrapper(vendor="mysql"), CONNECT),
        (wrapper(connect_timeout=3), 3),
        (wrapper(object()), None),
        (wrapper(vendor="sqlite"), None),
    ],
)
def test_connecting_has_a_limit_too_unless_there_is_one(silent, limit):
    before = silent.settings_dict
    with Lines("default", 20).waiting(wrapper=silent):
        assert silent.settings_dict["OPTIONS"].get("connect_timeout") == limit
    assert before["OPTIONS"].get("connect_timeout") in {None, 3}


def test_a_connection_is_tried_for_until_there_is_one(monkeypatch):
    tries, pauses = [OperationalError("full"), OperationalError("full"), None], []

    def ensure_connection():
        if (error := tries.pop(0)) is not None:
            raise error

    silent = wrapper(vendor="sqlite")
    silent.ensure_connection, silent.close = ensure_connection, lambda: None
    monkeypatch.setattr(module, "connections", {"default": silent})
    trouble = Trouble("settle")
    Lines("default").connect(trouble, wait=pauses.append, over=lambda: False)
    assert not tries
    assert len(pauses) == 2
    assert not trouble.lasts


def test_nobody_connects_when_all_is_over():
    Lines("default").connect(Trouble("settle"), wait=None, over=lambda: True)
