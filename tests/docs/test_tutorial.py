"""
Walk through each tutorial as its reader would: the same commands, files and answers, in that order.

What a reader types to get the package is left out, for here it is installed.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from .commands import commands
from .pages import PYTHON, SESSION, SHELL, TUTORIALS, fences, name

INSTALLING = re.compile(r"python3? -m (venv|pip) |\. \S*activate$|source |git clone ")
SHELL_COMMAND = "python manage.py shell"
WORKER_COMMAND = "python manage.py runworker"
STOP_WORKER = "## Stop the worker"
PATIENCE = 120

# What answers in the shell: each line that it reads is a part of a session, with what went before
# still known; it says what was wrong with the answers.
ANSWER_SESSION = """
import doctest, json, sys
names = {}
for line in sys.stdin:
    test = doctest.DocTestParser().get_doctest(json.loads(line), names, "session", None, 0)
    runner, wrong = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    runner.run(test, out=wrong.append, clear_globs=False)
    names.update(test.globs)
    print(json.dumps("".join(wrong) if runner.failures else ""), flush=True)
"""


class Reader(ExitStack):
    """Somebody with a directory and two terminals who does what the page says."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory
        self.shell = self.worker = None

    def follow(self, snippet):
        if snippet.not_run:
            return
        if snippet.language in SHELL:
            for command in commands(snippet):
                self.type(command)
        elif snippet.language in SESSION:
            self.say(snippet)
        elif snippet.language in PYTHON:
            self.write(snippet)

    def type(self, command):
        if INSTALLING.match(command.text):
            return
        if command.text == SHELL_COMMAND:
            talk = ["-c", ANSWER_SESSION, "--verbosity", "0"]
            self.shell = self.start(command.text, *talk, stdin=subprocess.PIPE)
        elif command.text == WORKER_COMMAND:
            self.worker = self.start(command.text, stderr=subprocess.STDOUT)
        elif command.text.startswith("cd "):
            self.directory /= command.text.removeprefix("cd ")
        else:
            answer = self.run(command.text)
            assert command.output in answer, f"{command.text} said:\n{answer}"

    def write(self, snippet):
        """Add a snippet to the file in its first line; what startapp put there gives way."""
        assert snippet.file, f"{snippet} names no file in its first line"
        path = self.directory / snippet.file
        known = path.read_text() if path.exists() else ""
        path.write_text(f"{known}\n{snippet.code}" if "INSTALLED_APPS" in known else snippet.code)

    def say(self, snippet):
        """Say a part of a session into the shell that is open."""
        print(json.dumps(snippet.code), file=self.shell.stdin, flush=True)
        wrong = json.loads(self.shell.stdout.readline())
        assert not wrong, f"{snippet}: {wrong}"

    def run(self, text):
        process = self.start(text, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{text} said:\n{said}"
        return said

    def start(self, text, *arguments, **streams):
        program, *words = shlex.split(text)
        programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
        process = subprocess.Popen(
            [*programs[program], *words, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=own_environment(),
            **streams,
        )
        self.enter_context(process)
        self.callback(process.kill)
        return process

    def stop_worker(self):
        """Press Ctrl-C in the second terminal."""
        self.worker.send_signal(signal.SIGINT)
        said, _ = self.worker.communicate(timeout=PATIENCE)
        assert self.worker.returncode == 0, said
        assert "is ready" in said
        assert "SIGINT" in said


def own_environment():
    """The environment without what the tests' own Django was told."""
    told = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}
    return {name: value for name, value in os.environ.items() if name not in told}


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_does_what_it_says(page, tmp_path):
    stop = page.read_text("utf-8").partition(STOP_WORKER)[0].count("\n")
    with Reader(tmp_path) as reader:
        for snippet in fences(page):
            if snippet.line > stop and reader.worker and reader.worker.returncode is None:
                reader.stop_worker()
            reader.follow(snippet)
        assert reader.shell
        assert reader.worker.returncode == 0
