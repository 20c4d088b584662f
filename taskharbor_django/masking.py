"""
Texts and values made fit to be stored and shown.

Mask first and cut afterwards: a cut may part a secret from the name that gives it away.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

MASK = "••••••"
MAX_DEPTH = 200

# -- text that can be stored ------------------------------------------------------------------

# PostgreSQL takes no NUL in text, and UTF-8 has no form for half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def sanitise_text(text: object, max_chars: int) -> str:
    """Return text of at most max_chars that every database takes; never raise."""
    return _UNSTORABLE.sub("\ufffd", _cut(_text(text), max_chars))


def describe_exception(error: BaseException, max_chars: int = 200_000) -> str:
    """
    Return the class and the message of an exception, whatever its __str__ does.

    What is too long loses its end, not its middle: mask_text still finds the name of each secret.
    """
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    message = _text(error)
    text = f"{name}: {message}" if message else name
    return _UNSTORABLE.sub("\ufffd", text[:max_chars])


def _text(value: object) -> str:
    try:
        # A subclass of str may lie about its length: take a plain copy.
        return str.__str__(str(value))
    except BaseException:  # noqa: BLE001 - SystemExit too: a handler's class decides nothing here
        return f"<{type(value).__qualname__} without a readable text>"


def _cut(text: str, max_chars: int) -> str:
    """Leave out the middle: a traceback says where at its top and what at its end."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_left_out(len(text)))
    if room < 40:
        return text[: max(max_chars - 1, 0)] + "…"[:max_chars]
    head = room // 2
    return text[:head] + _left_out(len(text) - room) + text[head - room :]


def _left_out(count: int) -> str:
    return f"\n… {count:,} characters left out …\n"


# -- secrets in values ------------------------------------------------------------------------


def mask(value: Any, keys: Collection[str]) -> Any:
    """Copy a decoded value, hiding all that stands under a key which contains one of keys."""
    return _masked(value, _folded(tuple(keys)), MAX_DEPTH)


def _masked(value: Any, words: tuple[str, ...], room: int) -> Any:
    if not isinstance(value, dict | list | tuple):
        return value
    if not room:
        return MASK
    if isinstance(value, dict):
        return {
            key: MASK if _is_secret(key, words) else _masked(item, words, room - 1)
            for key, item in value.items()
        }
    items = [_masked(item, words, room - 1) for item in value]
    return tuple(items) if isinstance(value, tuple) else items


_SEPARATORS = str.maketrans("", "", "-_. ")


@lru_cache(maxsize=32)
def _folded(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(filter(None, map(_fold, keys)))


def _fold(name: str) -> str:
    # So that api_key is also found in X-Api-Key and apiKey.
    return name.lower().translate(_SEPARATORS)


def _is_secret(name: object, words: tuple[str, ...]) -> bool:
    folded = _fold(str(name))
    return any(word in folded for word in words)


# -- secrets in text --------------------------------------------------------------------------

# Every quantifier is possessive or stops at a character that the next part begins with, so the
# time grows with the length of the text and nothing worse.
_NAME = re.compile(
    r"""(?<![\w.-]) (?P<name>[\w.-]++) (?:\\?['"]\]?)? [ \t]{0,2}
        (?P<sign> :=|=>|=(?!=)|: ) [ \t]{0,2}""",
    re.VERBOSE,
)
# Quoted, bracketed, or up to the next blank or delimiter. What is not closed ends with its line.
_VALUE = re.compile(
    r"""\\?+[bru]{0,2}+ (?: '(?:[^'\\\n]|\\.)*+'? | "(?:[^"\\\n]|\\.)*+"? )++
      | (?: \[[^\]\n]*+\]? | \([^)\n]*+\)? | \{[^}\n]*+\}? | [^\s,;&)\]}'"\[({] )++""",
    re.VERBOSE,
)
_LINE = re.compile(r"[^\r\n]++")
_HEADERS = ("authorization", "cookie")
# The line that ends a traceback, such as KeyError: 'x' or shop.errors.TokenExpired: …
_EXCEPTION = re.compile(
    r"(?:\w+\.)*+[A-Z]\w*(?:Error|Exception|Warning|Interrupt)|(?:\w+\.)++[A-Z]\w*"
)
_IN_URL = re.compile(r"(?<=://)([^\s/?#:@'\"]*+):[^\s/?#'\"]+@")
_BEARER = re.compile(r"\b(Bearer|Basic)[ \t]++[\w.~+/=-]{16,}+", re.IGNORECASE)


def mask_text(text: str, keys: Collection[str]) -> str:
    """
    Hide what looks like a secret in free text, rather too much than too little.

    That is the value in `password=…`, `'api_key': '…'`, headers with credentials, and the password
    in a URL. Names are matched against keys as in `mask`.
    """
    words = _folded(tuple(keys))
    text = _IN_URL.sub(rf"\1:{MASK}@", text)
    return _BEARER.sub(rf"\1 {MASK}", _mask_named(text, words))


def mask_url(url: str, keys: Collection[str]) -> str:
    """Hide the password and the query of a URL: whoever knows these can use it."""
    head, sign, query = url.partition("?")
    return mask_text(head, keys) + sign + (MASK if query else "")


def _mask_named(text: str, words: tuple[str, ...]) -> str:
    pieces: list[str] = []
    done = 0
    for match in _NAME.finditer(text):
        # A name inside a value that is hidden already is hidden with it.
        if match.start() < done or not _is_secret(match["name"], words) or _ends_traceback(match):
            continue
        value = _secret_after(match, text)
        if value:
            pieces += text[done : match.end()], MASK
            done = value.end()
    return "".join(pieces) + text[done:]


def _secret_after(match: re.Match[str], text: str) -> re.Match[str] | None:
    # A bare header is credentials to its end: "Bearer abc", "a=1; b=2".
    quoted = text.startswith(("'", '"'), match.end())
    if not quoted and _fold(match["name"]).endswith(_HEADERS):
        return _LINE.match(text, match.end())
    return _VALUE.match(text, match.end())


def _ends_traceback(match: re.Match[str]) -> bool:
    at_line_start = match.start() == 0 or match.string[match.start() - 1] == "\n"
    return at_line_start and match["sign"] == ":" and bool(_EXCEPTION.fullmatch(match["name"]))
