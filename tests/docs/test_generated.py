"""What the docs copy from the code is what the code says."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_generated_part_of_the_docs_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "_generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.stale() == [], "run: python docs/_generate.py"
