"""
What the demo says: headings, lines, tables, and a picture that is drawn again in its place.

Plain ASCII. Colours, and redrawing, only on a terminal; NO_COLOR (see no-color.org) wins over it.
"""

import os
import shutil
import textwrap

from django.core.management.color import color_style, no_style


class Screen:
    def __init__(self, stdout, *, color=None):
        """`color` None asks the terminal."""
        self._stdout = stdout
        if color is None:
            color = stdout.isatty() and not os.environ.get("NO_COLOR")
        self._style = color_style(force_color=True) if color else no_style()
        self.redraws = bool(color) and stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0

    def heading(self, text):
        self.say("\n" + self._style.MIGRATE_HEADING(text))

    def good(self, text):
        self.say(self._style.SUCCESS(text))

    def bad(self, text):
        self.say(self._style.ERROR(text))

    def say(self, text=""):
        self._stdout.write(text)
        # Whoever reads through a pipe wants to follow, too.
        self._stdout.flush()

    def item(self, name, text):
        """Write a name and what is to be said about it beside."""
        self.say(self._filled(f"{name:<12}", text))

    def table(self, head, rows):
        """Write rows under a head, each column as wide as it must be; the last one may wrap."""
        lines = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        self.say(self._style.MIGRATE_LABEL(_line(head, widths).rstrip()))
        self.say("  ".join("-" * width for width in widths)[: self._width()])
        for *cells, last in lines:
            self.say(self._filled(_line(cells, widths) + "  ", last))

    def _filled(self, begin, text):
        after = " " * len(begin)
        wrapped = textwrap.wrap(text, self._width(), initial_indent=begin, subsequent_indent=after)
        return "\n".join(wrapped or [begin.rstrip()])

    def _width(self):
        """As much as fits; a file or a pipe takes any length, so that lines can be searched."""
        return shutil.get_terminal_size().columns if self._stdout.isatty() else 1_000

    def draw(self, lines):
        """Draw lines, pairs of a style's name (or nothing) and a text, over those of before."""
        width, height = shutil.get_terminal_size()
        # A line that wraps, or a picture higher than the terminal, could not be gone back over.
        shown = [self._styled(style, text[: width - 1]) for style, text in lines[: height - 2]]
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        self.say(back + "\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J")
        self._drawn = len(shown)

    def _styled(self, style, text):
        return getattr(self._style, style)(text) if style else text


def _line(cells, widths):
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
