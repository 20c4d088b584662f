"""Texts that any database takes, and secrets that nobody gets to see."""

from __future__ import annotations

import time as clock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor_django.masking import MASK, describe_exception, mask, mask_text, sanitise_text

KEYS = ("password", "secret", "token", "authorization", "cookie", "key")
SECRET = "hunter2"

any_text = st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\x00"))


# -- text that can be stored ------------------------------------------------------------------


@given(any_text, st.integers(0, 200))
@example("a" * 1000, 200)
@example("\ud800\x00" * 500, 150)
def test_sanitised_text_fits_and_can_be_stored(text, limit):
    clean = sanitise_text(text, limit)
    assert len(clean) <= limit
    assert "\x00" not in clean
    clean.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_text_that_can_be_stored_is_left_alone(text):
    assert sanitise_text(text, len(text)) == text


def test_what_cannot_be_stored_is_replaced_sign_for_sign():
    assert sanitise_text("a\x00b\ud800c\udfffd", 99) == "a\ufffdb\ufffdc\ufffdd"


def test_a_long_text_loses_its_middle_and_says_how_much():
    text = "head " + "x" * 9990 + " tail"
    short = sanitise_text(text, 200)
    before, marker, after = short.split("\n")
    assert before.startswith("head x")
    assert after.endswith("x tail")
    assert marker == f"… {10_000 - len(before) - len(after):,} characters left out …"
    assert abs(len(before) - len(after)) <= 1


def test_a_very_short_limit_leaves_the_beginning():
    assert sanitise_text("abcdefgh", 4) == "abc…"
    assert sanitise_text("abcdefgh", 1) == "…"
    assert sanitise_text("abcdefgh", 0) == ""


def test_a_huge_text_is_cut_in_no_time():
    assert len(sanitise_text("\x00" * 20_000_000, 32_768)) <= 32_768


class Mute(Exception):
    def __str__(self):
        raise RuntimeError(SECRET)


class Exits(Exception):
    def __str__(self):
        raise SystemExit(3)


class Seven(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307


class Liar(str):
    __slots__ = ()

    def __len__(self):
        return 3

    def __str__(self):
        return self


@pytest.mark.parametrize("kind", [Mute, Exits, Seven])
def test_an_exception_without_a_text_is_described_by_its_class(kind):
    text = describe_exception(kind())
    name = kind.__qualname__
    assert text == f"tests.unit.test_masking.{name}: <{name} without a readable text>"
    assert name in sanitise_text(kind(), 99)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("a\x00\ud800"), "ValueError: a\ufffd\ufffd"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec"),
    ],
    ids=repr,
)
def test_an_exception_is_described_by_class_and_text(error, text):
    assert describe_exception(error).startswith(text)


def test_a_description_loses_its_end_so_that_no_secret_loses_its_name():
    error = ValueError("x" * 300 + " password='" + SECRET * 1_000_000)
    assert len(describe_exception(error)) == 200_000
    assert describe_exception(error, 500).startswith("ValueError: xxx")
    for length in range(300, 400):
        assert SECRET not in mask_text(describe_exception(error, length), KEYS)


def test_text_that_lies_about_its_length_is_cut_all_the_same():
    clean = sanitise_text(Liar("x" * 1000), 300)
    assert type(clean) is str
    assert len(clean) <= 300


# -- secrets in values ------------------------------------------------------------------------


def test_values_under_matching_keys_are_hidden_at_any_depth():
    value = (["a", {"Password": SECRET}], {"user": {"api_token": [SECRET], "name": "eve"}})
    assert mask(value, KEYS) == (
        ["a", {"Password": MASK}],
        {"user": {"api_token": MASK, "name": "eve"}},
    )


@pytest.mark.parametrize(
    "name", ["PASSWORD", "db_password", "passwords", "X-Api-Key", "apiKey", "Set-Cookie", "secret"]
)
def test_keys_match_in_any_case_and_as_part_of_a_name(name):
    assert mask({name: SECRET}, KEYS) == {name: MASK}


def test_separators_do_not_count():
    assert mask({"X-Api-Key": SECRET, "apiKey": SECRET}, ["api_key"]) == {
        "X-Api-Key": MASK,
        "apiKey": MASK,
    }


def test_masking_makes_a_copy_and_leaves_the_rest_as_it_is():
    value = {"a": [1, ("x", None)], "token": {"deep": SECRET}}
    assert mask(value, KEYS) == {"a": [1, ("x", None)], "token": MASK}
    assert value["token"] == {"deep": SECRET}
    assert mask(value, []) == value
    assert mask(value, [""]) == value


def test_masking_does_not_stumble_over_depth_or_odd_keys():
    deep: object = SECRET
    for _ in range(5000):
        deep = [deep]
    assert SECRET not in repr(mask(deep, KEYS))
    assert mask({1: 2, None: 3}, KEYS) == {1: 2, None: 3}


# -- secrets in text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password=hunter2", "password=••••••"),
        ("password = hunter2 ok", "password = •••••• ok"),
        ("connect(password='hunter2', port=1)", "connect(password=••••••, port=1)"),
        ("{'password': 'hunter2', 'a': 1}", "{'password': ••••••, 'a': 1}"),
        ('{"api_key":"hunter2"}', '{"api_key":••••••}'),
        (r"{\"api_key\": \"hunter2\"}", r"{\"api_key\": ••••••"),
        ("environ['SECRET_KEY'] = 'hunter2'", "environ['SECRET_KEY'] = ••••••"),
        ("token: hunter2", "token: ••••••"),
        ("token => hunter2", "token => ••••••"),
        ("token := hunter2", "token := ••••••"),
        ("'token': b'hunter2'", "'token': ••••••"),
        ("token='it is \\'hunter2\\' now' x", "token=•••••• x"),
        ("token='never closed hunter2", "token=••••••"),
        ("token='never closed hunter2\nnext", "token=••••••\nnext"),
        ("tokens=['hunter1', 'hunter2'] x", "tokens=•••••• x"),
        ("token=Secret('hunter2, hunter3') x", "token=•••••• x"),
        ("secret={'a': 'hunter2'} x", "secret=•••••• x"),
        ("GET /?token=hunter2&page=2", "GET /?token=••••••&page=2"),
        ("body='password=hunter2' x", "body='password=••••••' x"),
        ("token='''hunter2 hunter3''' x", "token=•••••• x"),
        ("a: password=hunter2", "a: password=••••••"),
        ("with shop.Token: hunter2", "with shop.Token: ••••••"),
        ("Authorization: Bearer hunter2", "Authorization: ••••••"),
        ("Cookie: a=hunter2; b=hunter3\nHost: x", "Cookie: ••••••\nHost: x"),
        ("{'Authorization': 'Bearer hunter2'} x", "{'Authorization': ••••••} x"),
        ("HTTP_COOKIE=a=hunter2; b=hunter3", "HTTP_COOKIE=••••••"),
        ("sent Bearer hunter2hunter2hunter2 to x", "sent Bearer •••••• to x"),
        ("postgres://bob:hunter2@db/shop", "postgres://bob:••••••@db/shop"),
        ("redis://:hunter2@cache:6379/0", "redis://:••••••@cache:6379/0"),
        ("https://a:hunt@er2@b/, http://c:hunter2@d", "https://a:••••••@b/, http://c:••••••@d"),
    ],
)
def test_secrets_in_text_are_hidden(text, masked):
    assert mask_text(text, KEYS) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order 7 was not found: status=404, path='/orders/7'",
        "KeyError: 'order_id'",
        "Traceback (most recent call last):\nKeyError: 'order_id'",
        "shop.errors.TokenExpired: sign in again",
        "KeyboardInterrupt: stopped",
        "jwt.exceptions.InvalidTokenError: Signature has expired",
        "if token == other:",
        "duplicate key value violates unique constraint",
        "Key (id)=(7) already exists.",
        "https://example.com:8000/a@b",
        "Basic authentication failed",
        "for key, value in rows:",
    ],
)
def test_text_without_secrets_is_left_alone(text):
    assert mask_text(text, KEYS) == text


def test_only_the_keys_given_are_hidden_by_name():
    assert mask_text("password=a pin=1", ["pin"]) == f"password=a pin={MASK}"
    assert mask_text("password=a", []) == "password=a"


@given(any_text, st.sampled_from(KEYS), st.sampled_from(["=", ": ", "='", '": "', " = "]))
def test_a_named_secret_on_a_line_of_its_own_never_survives(before, key, sign):
    assert SECRET not in mask_text(f"{before.replace(SECRET, '')}\n{key}{sign}{SECRET}", KEYS)


@pytest.mark.parametrize(
    "piece",
    [
        *["a", "a.", "A.B", "-", " ", "\n", "=", ":", "'", "\\", "Error:", "password", "token: \n"],
        *[
            "token",
            "token=",
            "token =  ",
            "token='",
            "token=\\'",
            'token="\\',
            "token=[",
            "token=({[",
        ],
        *["://", "://a:", "://a:b", "Bearer ", "Bearer a"],
    ],
)
def test_the_time_grows_with_the_length_and_no_faster(piece):
    def seconds(length):
        text = piece * (length // len(piece))
        started = clock.process_time()
        mask_text(text, KEYS)
        return clock.process_time() - started

    # Thirty times the text: anything quadratic would take nine hundred times as long.
    short = min(seconds(20_000) for _ in range(3))
    assert seconds(600_000) < 200 * short + 0.5
