"""The commands that pages tell users to type, and whether each of them could be typed here."""

import itertools
import re
import shlex
import shutil
from configparser import ConfigParser
from dataclasses import dataclass

from django.core.management import (
    CommandError,
    find_commands,
    get_commands,
    load_command_class,
)

from .pages import ROOT

# What is part of a shell, and what a user has or is told to install a line before.
SHELL_WORDS = {".", "cd", "export", "source"}
MODULES = {"django", "pip", "tox", "venv"}
ENDS = {"&&", "||", ";", "|", "&"}
ASSIGNMENT = re.compile(r"\w+=")
MANAGE = re.compile(r"\bmanage\.py\b(.*)")
# Commands that pages name of packages which are not installed here.
OF_OTHERS = {"db_worker", "procrastinate", "qcluster"}
EXAMPLE = ROOT / "example_project" / "demo" / "management"


@dataclass(frozen=True)
class Command:
    """One line to type, and what the page says that it prints."""

    text: str
    output: str = ""

    def parts(self):
        """The simple commands that operators of the shell join, as lists of words."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found = [[]]
        for word in lexer:
            if word in ENDS:
                found.append([])
            elif found[-1] or not ASSIGNMENT.match(word):
                found[-1].append(word)
        return [words for words in found if words]


def commands(snippet):
    """Read a fence: in a console `$ ` begins a command, in a script each line is one."""
    lines = snippet.code.replace("\\\n", " ").splitlines()
    if snippet.language == "console":
        return _console(lines)
    return [Command(line) for line in lines if line and not line.startswith("#")]


def _console(lines):
    typed = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    ends = [*typed[1:], len(lines)]
    return [
        Command(lines[start][2:], "\n".join(lines[start + 1 : end]).strip())
        for start, end in zip(typed, ends, strict=False)
    ]


def configured(snippet):
    """What follows manage.py in a unit, a manifest, a Procfile, as lists of words."""
    for line in snippet.code.replace("\\\n", " ").splitlines():
        if found := MANAGE.search(line):
            # A list in JSON is the same words with quotes, commas and brackets around them.
            plain = re.sub(r"""["',\[\]]""", " ", found[1])
            yield Command(f"python manage.py {plain}").parts()[0]


def problem(words, *, elsewhere=False):
    """
    Say what is wrong with a simple command; empty when it could be typed.

    What is typed elsewhere may be a program or name a database that is not here.
    """
    program, *arguments = words
    if program in SHELL_WORDS:
        return ""
    if elsewhere:  # a page's own aliases are not those of the tests
        arguments = re.sub(r"(--database[ =])\S+", r"\1default", " ".join(arguments)).split()
    if program in ("python", "python3"):
        return _python_problem(arguments)
    if program == "django-admin":
        return _django_problem(arguments)
    if program == "tox":
        return _tox_problem(arguments)
    return "" if elsewhere or shutil.which(program) else f"there is no program {program}"


def mentioned_problem(words):
    """Say what is wrong with a command in a sentence, where the name of one may stand alone."""
    return "" if len(words) == 3 and words[2] in get_commands() else problem(words)


def _python_problem(arguments):
    first, *others = arguments or [""]
    if first == "-m":
        return "" if others and others[0] in MODULES else f"who has a module {others[:1]}?"
    if first == "manage.py":
        return _django_problem(others)
    return "" if (ROOT / first).is_file() else f"there is no file {first}"


def _django_problem(arguments):
    """Ask the command's own parser, so that an option which is gone is found too."""
    name, *others = arguments or [""]
    known = get_commands()
    if name in find_commands(str(EXAMPLE)):
        return ""  # test_example runs it; its models are not installed here
    if name not in known:
        return f"there is no command {name}"
    parser = load_command_class(known[name], name).create_parser("manage.py", name)
    # Then it raises this error, where it would print a text and leave.
    parser.called_from_command_line = False
    try:
        parser.parse_args(_with_our_alias(others))
    except CommandError as error:
        return f"{name}: {error}"
    return ""


def _with_our_alias(arguments):
    """Pages may have databases of their own; here there is one, and Django knows no other."""
    pairs = itertools.pairwise(["", *arguments])
    return ["default" if option == "--database" else word for option, word in pairs]


def _tox_problem(arguments):
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    known = {section.removeprefix("testenv:") for section in config.sections()}
    known |= {"sqlite", "postgresql", "mariadb"}  # made of what [testenv] says of each
    asked = [after for option, after in itertools.pairwise(arguments) if option == "-e"]
    unknown = {name for names in asked for name in names.split(",")} - known
    return f"tox has no environment {', '.join(sorted(unknown))}" if unknown else ""
