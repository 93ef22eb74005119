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

from tools.benches.options import BenchOptions
from tools.benches.report import Report

SUITES = ("split", "fleet", "speculation", "wan", "agent", "transfer", "export")


def main() -> None:
    arguments = _parser().parse_args()
    module = importlib.import_module(f"tools.benches.{arguments.suite}")
    report = Report(arguments.suite)
    options = BenchOptions(
        models=arguments.models,
        quick=arguments.quick,
        repeat=arguments.repeat or (1 if arguments.quick else 3),
        parts=tuple(arguments.only.split(",")) if arguments.only else (),
        configuration=arguments.configuration,
        hops_ms=tuple(map(int, arguments.hops.split(","))),
        soak_minutes=arguments.soak,
        llama_bin=arguments.llama_bin,
        llama_model=arguments.llama_model,
    )
    try:
        module.run(report, options)
    finally:
        if arguments.json:
            report.write(arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--quick", action="store_true", help="the small model, within 3 minutes")
    parser.add_argument("--models", type=Path, default=Path(".cache/models"), metavar="DIR")
    parser.add_argument("--repeat", type=int, metavar="N", help="medians of so many (3; quick: 1)")
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--only",
        metavar="PARTS",
        help="users,batching,first_token,prefix,long_prompt,soak,llama; speculation: "
        "kinds,copy,three_stages,sweep,agreement",
    )
    fleet.add_argument(
        "--configuration", default="f32/128/f32", help="of the same-as-ours baseline"
    )
    fleet.add_argument(
        "--hops", default="0,10,50,100", metavar="MS", help="speculation, wan: delays to try"
    )
    fleet.add_argument("--soak", type=float, default=0.0, metavar="MINUTES")
    fleet.add_argument(
        "--llama-bin", type=Path, metavar="DIR", help="with rpc-server, llama-server"
    )
    fleet.add_argument("--llama-model", type=Path, metavar="GGUF")
    return parser


if __name__ == "__main__":
    main()
