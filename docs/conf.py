"""How Sphinx builds the documentation."""

import logging
import os
import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from taskharbor_django import __version__  # noqa: E402 - needs the path above

project = "TaskHarbor for Django"
author = "the TaskHarbor for Django authors"
copyright = f"2026, {author}"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    # Other projects' names are not linked, so that the build needs no network.
    (r"py:.*", r"(?!taskharbor_django).*"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A section of the contents may still be without a page. Sphinx gives this warning a subtype but no
# type, so suppress_warnings cannot name it.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "toctree glob pattern" not in record.msg
)

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = project
