"""`meshinfer up`: this PC's agent in the foreground."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from meshinfer.core.configuration import Configuration
from meshinfer.core.fleet import Address
from meshinfer.core.units import format_bytes, parse_bytes
from meshinfer.errors import UsageError
from meshinfer.node.settings import Settings, default_name, read_api_key
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.source import read_source

LEAST_UPLOAD = 100_000
"""Bytes a second: at less, a piece would take longer than a puller waits for one."""

MOST_HOP_DELAY_MS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default=default_name(), help="as others see this PC")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for other PCs; stages use PORT+1")
    parser.add_argument("--api", metavar="HOST:PORT", help="for clients (default: this PC only)")
    parser.add_argument("--advertise", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument(
        "--model", metavar="SOURCE", help="the model that the fleet serves, as `pull` takes it"
    )
    parser.add_argument("--peer", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--no-mdns", action="store_true", help="only --peer and known PCs")
    parser.add_argument("--memory", metavar="SIZE", help="the most that stages may use here")
    parser.add_argument("--store", type=Path, metavar="DIR", help="where stages lie on the disk")
    parser.add_argument(
        "--read-only-store", type=Path, action="append", default=[], metavar="DIR",
        help="stages that are there already, such as on a shared disk",
    )  # fmt: skip
    parser.add_argument("--store-limit", metavar="SIZE", help="the most that stages may take there")
    parser.add_argument("--upload-limit", metavar="SIZE", help="a second, of stages to other PCs")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu", "npu"), default="auto")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument("--stages", type=int, metavar="N", help="force a pipeline of N stages")
    parser.add_argument("--precision", choices=("auto", "f32", "bf16"), default="auto")
    parser.add_argument(
        "--deterministic", action="store_true", help="f32 in fixed shapes: the same in company"
    )
    parser.add_argument(
        "--configuration", default="auto", metavar="HOW",
        help="auto: measured once for each device; default; or one such as f32/128/u8",
    )  # fmt: skip
    parser.add_argument(
        "--draft", default="auto", metavar="NAME",
        help="a small model that guesses ahead, on a PC with room; auto: one that is on this PC; "
        "none: only what the text itself repeats; off: nothing is guessed",
    )  # fmt: skip
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="while this PC leads: what every stage did when, for ui.perfetto.dev",
    )  # fmt: skip
    parser.add_argument(
        "--hop-delay", type=float, default=0.0, metavar="MS",
        help="for trying out how a fleet does on slow links: what other PCs send over the ring "
        "is taken so many milliseconds late",
    )  # fmt: skip
    parser.add_argument("--idle", choices=("auto", "always"), default="always")
    parser.add_argument("--verbose", action="store_true", help="debug lines in the log")


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
    )
    from meshinfer.node.run import run_agent  # aiohttp, zeroconf, cryptography: 0.5 s to import

    return run_agent(settings(arguments))


def settings(arguments: argparse.Namespace) -> Settings:
    """Flags as Settings. Raises UsageError."""
    if arguments.idle == "auto":
        raise UsageError("--idle auto is not built yet.", "Leave it out: the PC always helps.")
    listen_host, listen_port = _host_port(arguments.listen, "--listen", "0.0.0.0")
    model = read_source(arguments.model, Catalogue.load().names) if arguments.model else None
    api_host, api_port = _host_port(arguments.api, "--api", "127.0.0.1")
    return Settings(
        state_dir=arguments.state_dir.expanduser().resolve(),
        name=arguments.name,
        listen_host=listen_host,
        listen_port=listen_port,
        api_host=api_host,
        api_port=api_port,
        model=model.model_id if model is not None else None,
        model_source=arguments.model or "",
        peers=tuple(_address(word, "--peer") for word in arguments.peer),
        advertise=tuple(_address(word, "--advertise") for word in arguments.advertise),
        mdns=not arguments.no_mdns,
        memory_limit=parse_bytes(arguments.memory) if arguments.memory else None,
        store=_folder(arguments.store),
        read_only_stores=tuple(map(_resolved, arguments.read_only_store)),
        store_limit=parse_bytes(arguments.store_limit) if arguments.store_limit else None,
        upload_limit=_rate(arguments.upload_limit),
        device=arguments.device,
        threads=arguments.threads,
        stages=arguments.stages,
        precision=arguments.precision,
        deterministic=arguments.deterministic,
        configuration=_configuration(arguments.configuration),
        trace=_folder(arguments.trace),
        draft=arguments.draft,
        hop_delay_s=_hop_delay(arguments.hop_delay),
        api_key=read_api_key(arguments.state_dir),
    )


def _configuration(text: str) -> str:
    """Raises UsageError for what no engine takes: not minutes later, when a stage is loaded."""
    return text if text in ("auto", "default") else str(Configuration.parse(text))


def _hop_delay(milliseconds: float) -> float:
    """In seconds. Raises UsageError; nan is not within any bounds."""
    if not 0 <= milliseconds <= MOST_HOP_DELAY_MS:
        raise UsageError(
            f"--hop-delay {milliseconds:g} is not from 0 to {MOST_HOP_DELAY_MS} milliseconds.",
            "Give what a message needs from one PC to another, for example 50.",
        )
    return milliseconds / 1000


def _resolved(folder: Path) -> Path:
    return folder.expanduser().resolve()


def _folder(folder: Path | None) -> Path | None:
    return _resolved(folder) if folder is not None else None


def _rate(text: str | None) -> int | None:
    """Bytes a second. Raises UsageError for nothing at all: then nobody could load a stage."""
    if text is None:
        return None
    rate = parse_bytes(text.removesuffix("/s"))
    if rate < LEAST_UPLOAD:
        raise UsageError(
            f"--upload-limit {text} is too little to bring a stage to another PC.",
            f"Give at least {format_bytes(LEAST_UPLOAD)}.",
        )
    return rate


def _host_port(text: str | None, flag: str, host: str) -> tuple[str, int | None]:
    if text is None:
        return host, None
    address = _address(text, flag)
    return address.host, address.port


def _address(text: str, flag: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}.", "Write for example 192.168.1.20:9470.") from error
