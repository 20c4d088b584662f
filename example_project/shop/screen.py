"""What the demo says: headings, lines, tables. Plain ASCII, and colours only on a terminal."""

import os

from django.core.management.color import color_style, no_style


class Screen:
    def __init__(self, stdout, *, color=None):
        """`color` None asks the terminal; NO_COLOR (see no-color.org) wins over it."""
        self._stdout = stdout
        if color is None:
            color = stdout.isatty() and not os.environ.get("NO_COLOR")
        self._style = color_style(force_color=True) if color else no_style()

    def heading(self, text):
        self._stdout.write("\n" + self._style.MIGRATE_HEADING(text))

    def say(self, text=""):
        self._stdout.write(text)

    def good(self, text):
        self._stdout.write(self._style.SUCCESS(text))

    def table(self, head, rows):
        """Write rows under a head, each column as wide as it must be."""
        lines = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        self._stdout.write(self._style.MIGRATE_LABEL(_line(head, widths)))
        self._stdout.write("  ".join("-" * width for width in widths))
        for line in lines:
            self._stdout.write(_line(line, widths))


def _line(cells, widths):
    return "  ".join(map(str.ljust, cells, widths)).rstrip()
