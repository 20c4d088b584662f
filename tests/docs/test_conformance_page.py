"""The conformance page: every test that it names exists, and no row leaves anything open."""

import ast
import functools
import re
from collections import Counter

import pytest

from .pages import PAGES, ROOT, name

PAGE = ROOT / "docs" / "reference" / "conformance.md"
SUITE = ROOT / "taskharbor_django" / "drivers"
DOCUMENTS = [
    "TaskHarbor semantics",
    "Task contracts",
    "Queue semantics and invariants",
    "Driver contract",
    "GopherQueue formal job model",
]
HEAD = ["Statement", "Test", "Here"]
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
# What may stand in the place of tests, as the page explains.
WITHOUT_TEST = {"not promised"}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text):
    """Yield (document, lines of one table) in their order."""
    document = ""
    for title, table in re.findall(r"^## (.+)$|((?:^\|.*\n)+)", text, re.M):
        document = title or document
        if table:
            yield document, table.splitlines()


def rows():
    """Yield (document, cells) for each statement."""
    for document, (head, rule, *lines) in tables(PAGE.read_text("utf-8")):
        assert (cells(head), set(rule)) == (HEAD, set("|- ")), document
        yield from ((document, cells(line)) for line in lines)


def file_of(path):
    return (SUITE if path.startswith("conformance/") else ROOT) / path


@functools.cache
def names_in(path):
    """The names of what pytest may run of a file: functions, and methods of classes of tests."""
    tree = ast.parse(file_of(path).read_text("utf-8"))
    of_suite = path.startswith("conformance/")
    classes = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and (node.name in rules() if of_suite else node.name.startswith("Test"))
    ]
    return {name for body in (tree, *classes) for name in functions(body)}


def functions(node):
    return [each.name for each in node.body if isinstance(each, ast.FunctionDef)]


@functools.cache
def rules():
    """The classes that the suite is made of: what is in another one is run by nobody."""
    tree = ast.parse((SUITE / "conformance" / "__init__.py").read_text("utf-8"))
    suite = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    return {base.id for base in suite.bases}


each_document = pytest.mark.parametrize("document", DOCUMENTS)


def of(document):
    found = [row for title, row in rows() if title == document]
    assert found
    return found


@each_document
def test_a_row_has_a_statement_its_tests_and_what_is_different(document):
    assert [row for row in of(document) if len(row) != len(HEAD) or not all(row)] == []


@each_document
def test_a_row_names_tests_or_says_why_there_is_none(document):
    for row in of(document):
        named = "<br>".join(f"`{path}::{name}`" for path, name in TEST.findall(row[1]))
        assert row[1] == named or row[1] in WITHOUT_TEST, row


@each_document
def test_every_test_of_a_row_exists_and_is_named_once(document):
    for row in of(document):
        named = TEST.findall(row[1])
        assert [test for test, times in Counter(named).items() if times > 1] == [], row
        assert [(path, name) for path, name in named if name not in names_in(path)] == [], row


def test_the_page_has_a_chapter_for_each_document():
    assert list(dict.fromkeys(document for document, _ in rows())) == DOCUMENTS


def test_no_statement_of_a_section_is_there_twice():
    for document, (_, _, *lines) in tables(PAGE.read_text("utf-8")):
        statements = [cells(line)[0] for line in lines]
        assert len(statements) == len(set(statements)), document


def test_tests_are_named_in_tables_only():
    """In a sentence nobody would notice that one is gone."""
    text = PAGE.read_text("utf-8")
    in_rows = sum(len(TEST.findall(row[1])) for _, row in rows())
    assert len(re.findall(r"::test_", text)) == in_rows


@pytest.mark.parametrize("page", [page for page in PAGES if page != PAGE], ids=name)
def test_a_test_that_another_page_names_exists(page):
    named = TEST.findall(page.read_text("utf-8"))
    assert [(path, test) for path, test in named if test not in names_in(path)] == []


# -- the tests of this page can fail -------------------------------------------------------------


def test_rules_are_found_in_the_classes_of_the_suite():
    assert "test_a_wrong_token_does_not_match" in names_in("conformance/fencing.py")
    assert "all_refuse" in names_in("conformance/fencing.py")
    assert {"FencingRules", "Harness"} <= rules()


def test_functions_and_methods_are_found_and_nothing_else():
    assert "test_there_are_seven_states" in names_in("tests/unit/test_lifecycle.py")
    found = names_in("tests/storage/test_constraints.py")
    assert {"test_an_id_is_there_once", "violations"} <= found
    assert not {"TestColumns", "test_an_id_is_there_twice"} & found
