"""What the source of the package must not have, wherever it is added."""

import ast
import re
from pathlib import Path

import pytest

import taskharbor_django

PACKAGE = Path(taskharbor_django.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted(PACKAGE.rglob("templates/**/*.html"))
# Modules that turn stored bytes into objects or code.
NEVER_IMPORTED = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "code"}
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "mark_safe", "SafeString"}
# Where a name may be imported that is a string: settings, and the package's own public names.
IMPORTS_BY_NAME = {"conf.py": "import_string", "__init__.py": "import_module"}


def named(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def calls(tree):
    return [named(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "").partition(".")[0], *(it.name for it in node.names))


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text("utf-8")) for path in SOURCES}


def test_nothing_stored_can_become_an_object_or_code(trees):
    for path, tree in trees.items():
        assert NEVER_IMPORTED.isdisjoint(imports(tree)), path
        bare = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert NEVER_CALLED.isdisjoint(bare), path
        # Of these, a method may be called: patterns and statements are compiled, too.
        assert (NEVER_CALLED - {"compile"}).isdisjoint(calls(tree)), path


def test_a_string_is_imported_where_settings_name_it_and_nowhere_else(trees):
    found = {
        (str(path.relative_to(PACKAGE)), call)
        for path, tree in trees.items()
        for call in calls(tree)
        if call in {"import_string", "import_module", "find_spec", "load_backend"}
    }
    assert found == set(IMPORTS_BY_NAME.items())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_switches_escaping_off(path):
    text = path.read_text("utf-8")
    assert not re.search(r"\|\s*safe|autoescape\s+off|safeseq", text)
    assert "<script>" not in text
    assert not re.search(r"\son\w+=", text)


def test_each_rule_that_is_left_out_says_why():
    silent = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"(?<!ruff: )noqa(: [A-Z]+\d+(, ?[A-Z]+\d+)*)?\s*$", line)
        and not line.startswith("# ruff:")
    ]
    assert silent == []
