"""See tests.guards."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from .runner import check
from .table import GUARDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=check.__doc__)
    parser.add_argument("--list", action="store_true", help="say which guards there are")
    parser.add_argument("--only", metavar="NAME", action="append", help="run this one; repeatable")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - {guard.name for guard in GUARDS}:
        parser.error(f"there is no guard {', '.join(sorted(unknown))}; --list says which there are")
    guards = [guard for guard in GUARDS if not options.only or guard.name in options.only]
    if options.list:
        for guard in guards:
            print(f"{guard.name:<35}{', '.join(guard.on):<20}{guard.changes[0].file}")
        return 0
    return 0 if check(guards, partial(print, flush=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
