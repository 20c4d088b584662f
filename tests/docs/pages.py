"""
The pages that users read, as the fences in them.

A fence is run as its language says. One that cannot run is told so by a comment above it, with the
reason, and is then only compiled; of a shell's fence, Django's commands are still looked at:

    <!-- not run: it needs a server of its own -->
    ```python
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TUTORIALS = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]

PYTHON = {"python"}
SESSION = {"pycon"}
SHELL = {"console", "sh"}
CONFIG = {"ini", "yaml", "dockerfile", "procfile"}

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1``` *$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: ([^>]+) -->\s*\Z")
FILE = re.compile(r"# ([\w/]+\.py)\n")


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    language: str
    code: str
    not_run: str = ""

    @property
    def file(self):
        """The file that a first line such as `# shop/tasks.py` names, or nothing."""
        named = FILE.match(self.code)
        return named[1] if named else ""

    def compiled(self):
        """Compile it so that a traceback names the line of the page."""
        return compile("\n" * self.line + self.code, str(self.page), "exec", dont_inherit=True)

    def __str__(self):
        return f"{name(self.page)}:{self.line}"


def name(page):
    return str(page.relative_to(ROOT))


def fences(page):
    """All fences of a page, in their order."""
    text = page.read_text("utf-8")
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        not_run = NOT_RUN.search(before)
        lines = match[3].splitlines(keepends=True)
        yield Snippet(
            page=page,
            line=before.count("\n") + 1,
            language=match[2].strip(),
            code="".join(line.removeprefix(match[1]) for line in lines),
            not_run=not_run[1] if not_run else "",
        )


def snippets(page, languages):
    return [snippet for snippet in fences(page) if snippet.language in languages]
