"""Stored bytes as text to read: decoded, secrets masked, never run."""

from __future__ import annotations

import json
from typing import Any

from ..conf import get_settings
from ..exceptions import TaskHarborError
from ..masking import mask_url
from ..models import Job
from ..operations.arguments import by_name
from ..payload import ERASED, decode_call, decode_value, mask

MOST_CHARS = 50_000


def arguments(job: Job) -> str:
    """The arguments of a call as JSON, by name where the task is known."""
    data = bytes(job.payload)
    if data == ERASED:
        return ""
    try:
        args, kwargs = decode_call(data, codec=get_settings().payload_codec)
    except TaskHarborError as error:
        return str(error)
    named = by_name(job, args, kwargs)
    return _text({"args": list(args), "kwargs": kwargs} if named is None else named)


def value(data: Any) -> str:
    """A result or a checkpoint as JSON."""
    if not data:
        return ""
    try:
        return _text(decode_value(bytes(data), codec=get_settings().payload_codec))
    except TaskHarborError as error:
        return str(error)


def address(url: str) -> str:
    """A URL without the secrets in it."""
    return mask_url(url, get_settings().masked_keys)


def _text(value: Any) -> str:
    masked = mask(value, get_settings().masked_keys)
    text = json.dumps(masked, indent=2, ensure_ascii=False, default=str)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}\n…"
