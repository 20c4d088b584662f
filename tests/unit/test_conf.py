"""What TASKHARBOR may hold, what it becomes, and what is said when it is wrong."""

import dataclasses
import importlib.util
import re
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from taskharbor_django import conf
from taskharbor_django.backoff import Backoff
from taskharbor_django.conf import get_settings, parse
from taskharbor_django.payload import JSONCodec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
MIB = 1024 * 1024

DEFAULTS = {
    "database": None,
    "queue_databases": {},
    "queue": "default",
    "lease": timedelta(seconds=30),
    "heartbeat": timedelta(seconds=10),
    "max_attempts": 3,
    "max_lease_losses": 3,
    "backoff": Backoff(
        strategy="exponential",
        initial=timedelta(seconds=1),
        multiplier=2,
        maximum=timedelta(hours=1),
        jitter=0.1,
    ),
    "timeout": timedelta(minutes=30),
    "max_timeout": timedelta(minutes=30),
    "lifetime": timedelta(days=7),
    "submission_timeout": timedelta(seconds=30),
    "idempotency_ttl": timedelta(hours=24),
    "idempotency_strict": False,
    "payload_max_bytes": 1_048_576,
    "result_max_bytes": 1_048_576,
    "error_max_chars": 32_768,
    "masked_keys": (
        *("password", "passwd", "passphrase", "secret", "token", "authorization"),
        *("cookie", "key", "credential", "signature"),
    ),
    "record_attempts": "failures",
    "retention": {
        "done": timedelta(days=7),
        "cancelled": timedelta(days=7),
        "dead": None,
        "statistics": timedelta(days=30),
    },
    "schedules": {},
    "result_ttl": timedelta(hours=24),
    "workflow_max_jobs": 10_000,
    "max_dependencies": 1_000,
    "max_depth": 100,
    "shutdown_grace": timedelta(seconds=30),
    "poll": timedelta(seconds=1),
    "notify": "auto",
    "prefetch": "auto",
    "callback_hosts": {},
    "callback_secret": None,
    "clock": "database",
    "clock_skew": None,
}


class Reversing:
    def encode(self, value):
        return repr(value).encode()[::-1]

    def decode(self, data):
        return data[::-1].decode()


class OnlyEncodes:
    def encode(self, value):
        return b""


class Breaks:
    def __init__(self):
        raise RuntimeError("no key in the vault")


@pytest.fixture
def aliases(monkeypatch):
    """Let DATABASES have two aliases, whatever the settings of the tests have."""
    monkeypatch.setattr(conf, "connections", {"default": None, "metrics": None})


def read(**entries):
    """Parse entries that are expected to be right."""
    parsed, problems = parse(entries)
    assert problems == []
    return parsed


def problems_of(**entries):
    parsed, problems = parse(entries)
    assert (parsed is None) == bool(problems)
    return problems


def names_of(**entries):
    return [problem.names for problem in problems_of(**entries)]


# -- defaults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_entry_that_is_left_out_has_the_default_of_the_specification(name):
    assert getattr(read(), name) == DEFAULTS[name]


def test_payloads_are_json_unless_told_otherwise():
    assert type(read().payload_codec) is JSONCodec


def test_there_is_no_entry_beyond_those_of_the_specification():
    fields = {field.name for field in dataclasses.fields(conf.Settings)}
    assert fields == DEFAULTS.keys() | {"payload_codec"}


def test_the_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().lease = timedelta(seconds=1)
    with pytest.raises(TypeError):
        read().retention["done"] = None
    with pytest.raises(TypeError):
        read().queue_databases["x"] = "default"


def test_the_heartbeat_follows_the_lease():
    assert read(LEASE=90).heartbeat == timedelta(seconds=30)


def test_the_ceiling_follows_the_timeout():
    assert read(TIMEOUT=60).max_timeout == timedelta(seconds=60)
    assert read(TIMEOUT=None).max_timeout is None


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "length"),
    [
        (5, timedelta(seconds=5)),
        (0.5, timedelta(milliseconds=500)),
        (timedelta(minutes=2), timedelta(minutes=2)),
        (timedelta(days=36_500), timedelta(days=36_500)),
        (timedelta(days=20_000, microseconds=1), timedelta(days=20_000, microseconds=1)),
        (1e-6, timedelta(microseconds=1)),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(given, length):
    assert read(POLL=given).poll == length


@pytest.mark.parametrize(
    "given",
    [
        *(True, None, "30", b"30", -1, timedelta(seconds=-1), 0, 0.0, timedelta(0), 1e-9),
        *(float("nan"), float("inf"), 1e300, 10**400, timedelta(days=36_501), [30]),
    ],
)
def test_what_is_no_duration_above_zero_is_refused(given):
    assert names_of(POLL=given) == [("POLL",)]


@pytest.mark.parametrize("name", ["SHUTDOWN_GRACE", "RESULT_TTL", "CLOCK_SKEW"])
def test_some_durations_may_be_zero(name):
    assert getattr(read(**{name: 0}), name.lower()) == timedelta(0)


@pytest.mark.parametrize(
    "name", ["DATABASE", "MAX_LEASE_LOSSES", "TIMEOUT", "MAX_TIMEOUT", "LIFETIME", "RESULT_TTL"]
)
def test_none_takes_a_limit_away(name):
    assert getattr(read(**{name: None}), name.lower()) is None


@pytest.mark.parametrize("given", [0, -1, True, 1.0, "3", None, 2**31])
def test_attempts_are_a_whole_number_from_one(given):
    assert names_of(MAX_ATTEMPTS=given) == [("MAX_ATTEMPTS",)]


@pytest.mark.parametrize("name", ["PAYLOAD_MAX_BYTES", "RESULT_MAX_BYTES"])
def test_a_byte_limit_goes_up_to_exactly_16_mib(name):
    assert getattr(read(**{name: 16 * MIB}), name.lower()) == 16 * MIB
    (problem,) = problems_of(**{name: 16 * MIB + 1})
    assert "from 1 to 16,777,216, not 16777217" in problem.message


@pytest.mark.parametrize("given", [1, 0, "yes", None])
def test_a_flag_is_true_or_false_and_nothing_that_equals_it(given):
    (problem,) = problems_of(IDEMPOTENCY_STRICT=given)
    assert "must be True or False" in problem.message


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("RECORD_ATTEMPTS", ["failures", "all"], ["none", True]),
        ("CLOCK", ["database"], ["utc", None]),
        ("NOTIFY", ["auto", True, False], ["yes", 1]),
        ("PREFETCH", ["auto", 0, 500], [True, -1, "many"]),
    ],
)
def test_a_choice_takes_its_options_only(name, right, wrong):
    for value in right:
        assert getattr(read(**{name: value}), name.lower()) == value
    for value in wrong:
        assert names_of(**{name: value}) == [(name,)]


@pytest.mark.parametrize("given", ["a", "mail.high:eu-1_x", "q" * 128])
def test_a_queue_name_of_the_allowed_characters_is_taken(given):
    assert read(QUEUE=given).queue == given


@pytest.mark.parametrize("given", ["", "q" * 129, "a b", "a/b", "ü", "a\n", None, 3])
def test_what_is_no_queue_name_is_refused(given):
    assert names_of(QUEUE=given) == [("QUEUE",)]


@pytest.mark.usefixtures("aliases")
def test_an_alias_of_databases_is_taken():
    parsed = read(DATABASE="metrics", QUEUE_DATABASES={"telemetry": "metrics"})
    assert (parsed.database, parsed.queue_databases) == ("metrics", {"telemetry": "metrics"})


@pytest.mark.usefixtures("aliases")
@pytest.mark.parametrize("given", ["replica", "", ["default"], 1])
def test_an_unknown_alias_is_refused_with_those_that_there_are(given):
    (problem,) = problems_of(DATABASE=given)
    assert problem.names == ("DATABASE",)
    assert "DATABASES has default, metrics" in problem.message


@pytest.mark.usefixtures("aliases")
@pytest.mark.parametrize(
    "given", [{"telemetry": "nowhere"}, {"tele metry": "metrics"}, {1: "metrics"}, ["metrics"]]
)
def test_queue_databases_map_queue_names_to_aliases(given):
    assert names_of(QUEUE_DATABASES=given) == [("QUEUE_DATABASES",)]


def test_a_backoff_may_be_a_name_a_dict_or_a_function():
    assert read(BACKOFF="linear").backoff == Backoff(strategy="linear")
    assert read(BACKOFF={"initial": 2}).backoff == Backoff(initial=timedelta(seconds=2))
    assert callable(read(BACKOFF=lambda *_: 1).backoff.strategy)


@pytest.mark.parametrize("given", ["fibonacci", {"inital": 2}, {3: 4}, None, 5])
def test_a_backoff_that_cannot_be_read_is_refused_with_the_reason(given):
    (problem,) = problems_of(BACKOFF=given)
    assert problem.names == ("BACKOFF",)
    assert re.search(r"\(.+\)\.$", problem.message)


@pytest.mark.parametrize(
    "given", [Reversing, Reversing(), f"{__name__}.Reversing"], ids=["class", "object", "path"]
)
def test_a_codec_may_be_a_class_an_object_or_a_dotted_path(given):
    assert isinstance(read(PAYLOAD_CODEC=given).payload_codec, Reversing)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no.such.codec", "ModuleNotFoundError"),
        ("pickle", "ImportError"),
        (f"{__name__}.Breaks", "RuntimeError: no key in the vault"),
        (OnlyEncodes, "lacks encode or decode"),
        (None, "lacks encode or decode"),
    ],
)
def test_a_codec_that_cannot_serve_is_refused_with_the_reason(given, reason):
    (problem,) = problems_of(PAYLOAD_CODEC=given)
    assert problem.names == ("PAYLOAD_CODEC",)
    assert reason in problem.message


def test_masked_keys_take_the_place_of_the_default_and_ignore_case():
    assert read(MASKED_KEYS=["PIN", "iban"]).masked_keys == ("pin", "iban")


@pytest.mark.parametrize("given", ["password", [""], [1], None])
def test_masked_keys_are_a_list_of_strings(given):
    assert names_of(MASKED_KEYS=given) == [("MASKED_KEYS",)]


def test_schedules_are_read_with_their_options():
    nightly = {"task": "shop.tasks.sweep", "cron": "0 3 * * *", "time_zone": "UTC", "args": [7]}
    (read_in,) = read(SCHEDULES={"nightly": nightly}).schedules.values()
    assert (read_in.name, read_in.task, read_in.args) == ("nightly", "shop.tasks.sweep", (7,))
    assert read_in.timing.cron == "0 3 * * *"
    assert nightly["task"] == "shop.tasks.sweep"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["nightly"], "a dict of names"),
        ({"nightly": "0 3 * * *"}, "a dict of names"),
        ({"nightly": {"cron": "0 3 * * *"}}, "task: None has not"),
        ({"nightly": {"task": "t", "cron": "0 3 * *"}}, "nightly: cron: .* five fields"),
        ({"nightly": {"task": "t", "fixed_rate": 5, "when": 7}}, "no option 'when'"),
        ({7: {"task": "t", "fixed_rate": 5}}, "name: 7 has not"),
    ],
)
def test_schedules_that_cannot_be_are_refused_with_the_reason(given, why):
    (problem,) = problems_of(SCHEDULES=given)
    assert problem.names == ("SCHEDULES",)
    assert re.search(why, problem.message)


def test_retention_keeps_the_defaults_of_states_that_are_left_out():
    kept = read(RETENTION={"done": 0, "dead": timedelta(days=90)}).retention
    assert kept == {
        "done": timedelta(0),
        "cancelled": timedelta(days=7),
        "dead": timedelta(days=90),
        "statistics": timedelta(days=30),
    }
    assert read(RETENTION={"cancelled": None}).retention["cancelled"] is None


@pytest.mark.parametrize("given", [{"ready": 1}, {"done": -1}, {"done": "1"}, None, 7])
def test_retention_is_a_dict_of_ended_states(given):
    assert names_of(RETENTION=given) == [("RETENTION",)]


def test_callback_hosts_become_a_map_to_the_network_they_may_be_in():
    given = ("Hooks.example.com", "billing.internal=10.20.0.0/16")
    hosts = read(CALLBACK_HOSTS=given, CALLBACK_SECRET="s").callback_hosts
    assert hosts == {"hooks.example.com": None, "billing.internal": ip_network("10.20.0.0/16")}


@pytest.mark.parametrize(
    "given",
    [
        *("example.com", ["https://example.com"], ["example.com:443"], ["example.com/x"]),
        *(["*.example.com"], [""], ["a=10.0.0.0/99"], ["a="], [None], None),
    ],
)
def test_callback_hosts_are_bare_host_names(given):
    assert names_of(CALLBACK_HOSTS=given, CALLBACK_SECRET="s") == [("CALLBACK_HOSTS",)]


@pytest.mark.parametrize("given", ["", "  ", 5, b"bytes"])
def test_a_callback_secret_is_a_string_that_is_not_empty(given):
    assert names_of(CALLBACK_SECRET=given) == [("CALLBACK_SECRET",)]


def test_a_secret_is_never_shown():
    assert "hunter2" not in repr(read(CALLBACK_SECRET="hunter2"))
    (problem,) = problems_of(CALLBACK_SECRET=b"hunter2")
    assert "hunter2" not in problem.message + problem.hint
    assert "not bytes" in problem.message


# -- combinations --------------------------------------------------------------------------------


def test_a_lease_of_exactly_two_heartbeats_is_long_enough():
    assert read(LEASE=20, HEARTBEAT=10).lease == timedelta(seconds=20)


def test_a_lease_shorter_than_two_heartbeats_is_refused():
    (problem,) = problems_of(LEASE=20, HEARTBEAT=10.000001)
    assert problem.names == ("LEASE", "HEARTBEAT")
    assert "shorter than two heartbeats" in problem.message


def test_a_timeout_may_reach_its_ceiling_and_not_pass_it():
    assert read(TIMEOUT=60, MAX_TIMEOUT=60).timeout == timedelta(seconds=60)
    assert read(TIMEOUT=61, MAX_TIMEOUT=None).timeout == timedelta(seconds=61)
    assert names_of(TIMEOUT=61, MAX_TIMEOUT=60) == [("TIMEOUT", "MAX_TIMEOUT")]


def test_no_timeout_is_allowed_only_without_a_ceiling():
    assert read(TIMEOUT=None, MAX_TIMEOUT=None).timeout is None
    assert names_of(TIMEOUT=None, MAX_TIMEOUT=60) == [("TIMEOUT", "MAX_TIMEOUT")]


def test_a_local_clock_needs_a_lease_of_more_than_twice_the_skew():
    assert read(CLOCK="local", CLOCK_SKEW=14.9).clock == "local"
    assert names_of(CLOCK="local", CLOCK_SKEW=15) == [("CLOCK", "CLOCK_SKEW", "LEASE")]
    assert names_of(CLOCK="local") == [("CLOCK", "CLOCK_SKEW", "LEASE")]


def test_the_skew_does_not_matter_to_the_clock_of_the_database():
    assert read(CLOCK="database", CLOCK_SKEW=3600).clock_skew == timedelta(hours=1)


def test_callbacks_need_a_secret():
    assert names_of(CALLBACK_HOSTS=["a.example"]) == [("CALLBACK_SECRET", "CALLBACK_HOSTS")]
    assert read(CALLBACK_HOSTS=["a.example"], CALLBACK_SECRET="s").callback_secret == "s"


# -- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [("lease", "LEASE"), ("HEARTBEET", "HEARTBEAT"), ("MAX_ATEMPTS", "MAX_ATTEMPTS")],
)
def test_an_unknown_entry_is_refused_with_the_one_that_was_meant(given, meant):
    (problem,) = problems_of(**{given: 1})
    assert problem.message == f"TASKHARBOR has no entry '{given}'."
    assert problem.hint == f"Did you mean {meant}?"


def test_an_unknown_entry_like_no_other_is_refused_with_all_that_there_are():
    _, (problem,) = parse({42: 1})
    assert problem.message == "TASKHARBOR has no entry 42."
    assert "LEASE" in problem.hint
    assert "CLOCK_SKEW" in problem.hint


def test_a_message_names_entry_value_and_what_is_accepted():
    (problem,) = problems_of(MAX_ATTEMPTS="three")
    assert (
        problem.message == "TASKHARBOR['MAX_ATTEMPTS'] must be a whole number from 1, not 'three'."
    )
    assert problem.hint.startswith("Attempts that may fail before a job is buried.")


def test_a_long_value_is_cut():
    (problem,) = problems_of(QUEUE="q" * 5_000)
    assert len(problem.message) < 400


def test_all_problems_are_found_at_once():
    found = names_of(
        LEESE=1, MAX_ATTEMPTS=0, POLL=-1, TIMEOUT=60, MAX_TIMEOUT=30, CALLBACK_HOSTS=["a.example"]
    )
    assert found == [
        ("LEESE",),
        ("MAX_ATTEMPTS",),
        ("POLL",),
        ("TIMEOUT", "MAX_TIMEOUT"),
        ("CALLBACK_SECRET", "CALLBACK_HOSTS"),
    ]


def test_a_refused_entry_is_not_blamed_for_a_combination_as_well():
    assert names_of(LEASE="long", HEARTBEAT=60) == [("LEASE",)]


@pytest.mark.parametrize("given", [None, [], "LEASE=5", 5])
def test_what_is_no_dict_is_one_problem(given):
    parsed, problems = parse(given)
    assert parsed is None
    assert [problem.names for problem in problems] == [()]
    assert type(given).__name__ in problems[0].message


# -- the settings in force -----------------------------------------------------------------------


def test_the_settings_are_read_once():
    assert get_settings() is get_settings()


def test_overridden_settings_are_read_anew_and_put_back():
    before = get_settings()
    with override_settings(TASKHARBOR={"LEASE": 7}):
        assert get_settings().lease == timedelta(seconds=7)
    assert get_settings() == dataclasses.replace(before, payload_codec=get_settings().payload_codec)


def test_another_setting_leaves_them_alone():
    before = get_settings()
    with override_settings(LANGUAGE_CODE="de"):
        assert get_settings() is before


def test_a_project_without_the_dict_has_the_defaults(settings):
    settings.TASKHARBOR = {}
    del settings.TASKHARBOR
    assert get_settings().lease == timedelta(seconds=30)


@override_settings(TASKHARBOR={"LEESE": 1, "POLL": 0})
def test_wrong_settings_raise_with_all_that_is_wrong():
    with pytest.raises(ImproperlyConfigured) as caught:
        get_settings()
    assert "TASKHARBOR has no entry 'LEESE'. Did you mean LEASE?" in str(caught.value)
    assert "TASKHARBOR['POLL']" in str(caught.value)


# -- the page ------------------------------------------------------------------------------------


def generator():
    path = PAGE.parents[1] / "_generate.py"
    spec = importlib.util.spec_from_file_location("docs_generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snippets():
    """Return (heading, settings) of each example on the page."""
    found = re.findall(r"^#+ (.+?)$|^```python\n(.+?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    heading = ""
    for title, code in found:
        heading = title or heading
        if code:
            names = {}
            exec(code, names)  # noqa: S102  that the examples run is what is tested
            yield heading, names["TASKHARBOR"]


def test_the_table_on_the_page_is_made_from_the_code():
    generate = generator()
    assert "<!-- generated: settings -->" in PAGE.read_text("utf-8")
    assert generate.stale([PAGE]) == [], "run: python docs/_generate.py"


def test_the_table_has_a_line_for_each_entry():
    lines = generator().settings_table().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == list(conf.ENTRIES)


@pytest.mark.usefixtures("aliases")
def test_every_example_on_the_page_is_right():
    found = list(snippets())
    assert len(found) > 5
    for heading, given in found:
        assert parse(given)[1] == [], heading


@pytest.mark.usefixtures("aliases")
def test_the_page_has_the_numbers_of_the_documents():
    read_from = {heading: read(**given) for heading, given in snippets()}
    fast = read_from["Queue semantics and invariants"]
    assert fast.lease == timedelta(seconds=5)
    assert fast.heartbeat.total_seconds() == pytest.approx(1.67, abs=0.01)
    assert fast.max_attempts == 4
    assert fast.backoff == Backoff(initial=0.5, multiplier=2, maximum=30, jitter="full")
    assert read_from["GopherQueue formal job model"].lease == timedelta(minutes=5)
    assert read_from["Task contracts"].timeout is None
    assert read_from["TaskHarbor semantics"].max_lease_losses is None
    assert read_from["Driver contract"].retention["done"] == timedelta(0)
