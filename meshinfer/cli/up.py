"""`meshinfer up`: this PC's agent in the foreground."""

from __future__ import annotations

import argparse
import logging
import sys

from meshinfer.core.fleet import Address
from meshinfer.core.ids import ModelId
from meshinfer.core.units import parse_bytes
from meshinfer.errors import UsageError
from meshinfer.node.settings import Settings, default_name, read_api_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default=default_name(), help="as others see this PC")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for other PCs; stages use PORT+1")
    parser.add_argument("--api", metavar="HOST:PORT", help="for clients (default: this PC only)")
    parser.add_argument("--advertise", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--model", metavar="NAME", help="the model that the fleet serves")
    parser.add_argument("--peer", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--no-mdns", action="store_true", help="only --peer and known PCs")
    parser.add_argument("--memory", metavar="SIZE", help="the most that stages may use here")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu", "npu"), default="auto")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument("--stages", type=int, metavar="N", help="force a pipeline of N stages")
    parser.add_argument("--precision", choices=("auto", "f32", "bf16"), default="auto")
    parser.add_argument(
        "--deterministic", action="store_true", help="f32 without dynamic quantisation"
    )
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
    api_host, api_port = _host_port(arguments.api, "--api", "127.0.0.1")
    return Settings(
        state_dir=arguments.state_dir.expanduser().resolve(),
        name=arguments.name,
        listen_host=listen_host,
        listen_port=listen_port,
        api_host=api_host,
        api_port=api_port,
        model=ModelId(arguments.model) if arguments.model else None,
        peers=tuple(_address(word, "--peer") for word in arguments.peer),
        advertise=tuple(_address(word, "--advertise") for word in arguments.advertise),
        mdns=not arguments.no_mdns,
        memory_limit=parse_bytes(arguments.memory) if arguments.memory else None,
        device=arguments.device,
        threads=arguments.threads,
        stages=arguments.stages,
        precision=arguments.precision,
        deterministic=arguments.deterministic,
        api_key=read_api_key(arguments.state_dir),
    )


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
