"""The tests that the page about testing shows pass, each in a run of its own."""

import unittest

import pytest

from taskharbor_django import registry

from .pages import ROOT, snippets
from .test_snippets import own_registry, run_page  # noqa: F401  a fixture

PAGE = ROOT / "docs" / "how-to" / "testing.md"
CLASSES = ["Buying", "Receipt", "Inline", "Commit", "Later", "Async"]


@pytest.fixture
def shown(own_registry, monkeypatch):  # noqa: F811
    return run_page(PAGE, monkeypatch)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", CLASSES)
def test_a_test_case_of_the_page_passes(shown, name):
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(shown[f"{name}Tests"])
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun
    assert [text for _, text in result.errors + result.failures] == []


@pytest.mark.parametrize("inline", [False, True])
def test_a_test_function_of_the_page_passes(shown, request, inline):
    name = "test_the_receipt_is_sent_at_once" if inline else "test_buying_sends_a_receipt"
    kit = request.getfixturevalue("taskharbor_inline" if inline else "taskharbor")
    shown[name](kit)


def test_no_test_of_the_page_is_left_out(shown):
    made = {name for name, it in shown.items() if isinstance(it, type) and "Tests" in name}
    assert made == {f"{name}Tests" for name in CLASSES}
    functions = {name for name in shown if name.startswith("test_")}
    assert len(functions) == 2
    assert snippets(PAGE, {"python"})
    assert "shop.tasks.send_receipt" in registry
