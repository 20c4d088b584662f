"""Exceptions as they are stored and logged: nothing that is a secret is written of them."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from ..conf import Settings, get_settings
from ..payload import mask_text, sanitise_text

TRACEBACK_READ = 200_000  # characters from its end


def write(
    logger: logging.Logger,
    level: int,
    text: str,
    *known: Any,
    error: BaseException | None,
    trace: str,
    facts: dict[str, Any],
    depth: int = 2,
) -> None:
    """
    Log a text with the exception, which error trackers look for in the record.

    Handlers that write text get `trace` instead, in which secrets are masked.
    """
    if not logger.isEnabledFor(level):
        return
    raised = None if error is None else (type(error), error, error.__traceback__)
    file, line, function, _ = logger.findCaller(stacklevel=depth)
    record = logger.makeRecord(logger.name, level, file, line, text, known, raised, function)
    # What a formatter finds here it does not make anew from the exception itself.
    record.exc_text = trace or None
    record.__dict__ |= facts
    logger.handle(record)


def fault(
    logger: logging.Logger, error: BaseException, text: str, *known: Any, **facts: Any
) -> None:
    """Log what was raised where it should not have been."""
    trace = traceback_of(error, get_settings())
    write(logger, logging.ERROR, text, *known, error=error, trace=trace, facts=facts, depth=3)


def traceback_of(error: BaseException, settings: Settings) -> str:
    """The traceback without locals; one that cannot be made says only where."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  its own __str__ raises, or its code cannot be parsed now
        text = _places(error) + type(error).__qualname__
    return shown(text[-TRACEBACK_READ:], settings)


def _places(error: BaseException) -> str:
    """
    Where it came from, without the lines of code.

    Python 3.11 parses those to mark a part of them, which fails when two threads do it at a bad
    moment (gh-106905).
    """
    return "".join(
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
        for frame, line in traceback.walk_tb(error.__traceback__)
    )


def shown(text: str, settings: Settings) -> str:
    """A text as it may be stored and shown: without secrets, and not too long."""
    return sanitise_text(mask_text(text, settings.masked_keys), settings.error_max_chars)
