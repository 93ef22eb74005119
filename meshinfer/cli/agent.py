"""How the commands reach the agent of a state folder."""

from __future__ import annotations

import argparse
import json
from typing import Any

from meshinfer.core.fleet import Address
from meshinfer.node.api_client import ApiClient
from meshinfer.node.settings import read_api_key
from meshinfer.node.state_folder import StateFolder


def client(arguments: argparse.Namespace, timeout_s: float = 600.0) -> ApiClient:
    """Raises NotReady when no agent runs on the state folder."""
    agent = StateFolder(arguments.state_dir).running_agent()
    return ApiClient(Address.parse(agent.api), read_api_key(arguments.state_dir), timeout_s)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))
