"""What is written of exceptions."""

import logging

import pytest

from taskharbor_django.operations.logs import fault

logger = logging.getLogger("tests.logs")


def stumble():
    try:
        raise ValueError("password=hunter2")  # noqa: TRY301  its traceback is what this is about
    except ValueError as error:
        fault(logger, error, "%s failed", "something", job_id="7")
        return error


def test_a_record_has_the_exception_for_error_trackers_and_a_masked_text_for_others(caplog):
    error = stumble()
    (record,) = caplog.records
    assert record.exc_info[1] is error
    assert (record.job_id, record.funcName) == ("7", "stumble")
    shown = logging.Formatter().format(record)
    assert shown.startswith("something failed\nTraceback")
    assert "hunter2" not in shown


@pytest.mark.parametrize(("level", "records"), [(logging.CRITICAL, 0), (logging.ERROR, 1)])
def test_nothing_is_made_of_what_nobody_wants_to_read(caplog, level, records):
    caplog.set_level(level, logger.name)
    stumble()
    assert len(caplog.records) == records
