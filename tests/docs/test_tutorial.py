"""
Walk through each tutorial as its reader would: the same commands, files and answers, in that order.

What a reader types to get the package is left out, for here it is installed.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

from .commands import commands
from .pages import PYTHON, SESSION, SHELL, TUTORIALS, fences, name

INSTALLING = re.compile(r"python3? -m (venv|pip) |\. \S*activate$|source |git clone ")
SHELL_COMMAND = "python manage.py shell"
ANSWER_SESSION = """
import doctest, sys
test = doctest.DocTestParser().get_doctest(sys.stdin.read(), {}, "session", None, 0)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
runner.run(test)
sys.exit(bool(runner.failures))
"""


class Reader:
    """Somebody with a directory who does what the page says."""

    def __init__(self, directory):
        self.directory = directory
        self.session = ""

    def follow(self, snippet):
        if snippet.language in SHELL:
            for command in commands(snippet):
                self.type(command)
        elif snippet.language in SESSION:
            self.session += snippet.code
        elif snippet.language in PYTHON:
            self.write(snippet)

    def type(self, command):
        if INSTALLING.match(command.text) or command.text == SHELL_COMMAND:
            return
        if command.text.startswith("cd "):
            self.directory /= command.text.removeprefix("cd ")
            return
        answer = self.run(shlex.split(command.text))
        assert command.output in answer, f"{command.text} said:\n{answer}"

    def write(self, snippet):
        """Add a snippet to the file in its first line; what startapp put there gives way."""
        assert snippet.file, f"{snippet} names no file in its first line"
        path = self.directory / snippet.file
        known = path.read_text() if path.exists() else ""
        path.write_text(f"{known}\n{snippet.code}" if "INSTALLED_APPS" in known else snippet.code)

    def hold_session(self):
        """Say what the page says into one shell; one shell, so that names stay known."""
        self.run(["python", "manage.py", "shell", "-c", ANSWER_SESSION], said=self.session)

    def run(self, words, said=""):
        program, *arguments = words
        programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
        done = subprocess.run(
            [*programs[program], *arguments],
            input=said,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=self.directory,
            env=own_environment(),
        )
        assert done.returncode == 0, f"{shlex.join(words[:4])} said:\n{done.stdout}"
        return done.stdout


def own_environment():
    """The environment without what the tests' own Django was told."""
    told = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}
    return {name: value for name, value in os.environ.items() if name not in told}


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_does_what_it_says(page, tmp_path):
    reader = Reader(tmp_path)
    for snippet in fences(page):
        reader.follow(snippet)
    assert reader.session
    reader.hold_session()
