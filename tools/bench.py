"""Measures meshinfer and its baseline in the same run: `python tools/bench.py SUITE --json FILE`.

Each suite is a module of tools/benches. Run one alone on a quiet machine; every row is a ratio with
its baseline, so that two machines may be compared.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

# so that `python tools/bench.py` finds its own package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.benches.report import Report

SUITES = ("split", "fleet", "agent", "transfer", "export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--quick", action="store_true", help="the small model, within 3 minutes")
    parser.add_argument("--models", type=Path, default=Path(".cache/models"), metavar="DIR")
    arguments = parser.parse_args()
    module = importlib.import_module(f"tools.benches.{arguments.suite}")
    report = Report(arguments.suite)
    module.run(report, arguments.models, arguments.quick)
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
