"""`meshinfer status`: who is in the fleet, who holds what, how fast it is."""

from __future__ import annotations

import argparse
from typing import Any

from meshinfer.cli.agent import add_json, client, print_json
from meshinfer.cli.table import table
from meshinfer.core.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    document = client(arguments, timeout_s=5.0).status()
    if arguments.json:
        print_json(document)
    else:
        print(render(document))
    return 0


def render(document: dict[str, Any]) -> str:
    """The whole status as text."""
    parts = [_headline(document), members_table(document)]
    if document.get("plan"):
        parts.append(stages_table(document))
    if document.get("no_plan"):
        parts.append(f"No plan: {document['no_plan']['why']}")
    serving = document.get("serving")
    if serving:
        parts.append(
            f"{serving['running']} running, {serving['waiting']} waiting, "
            f"{serving['tokens_per_s']:.1f} tokens/s, cache {serving['cache_used']:.0%} used, "
            f"{serving['cache_kept']:.0%} kept for prompts that begin alike"
            f"{_guesses(serving)}"
        )
    delay_ms = document["node"].get("hop_delay_ms")
    if delay_ms:
        parts.append(f"Slowed for a trial: --hop-delay adds {delay_ms:g} ms to hops to this PC.")
    refusals = document.get("refusals") or []
    if refusals:
        newest = refusals[-1]
        parts.append(
            f"{sum(one['count'] for one in refusals)} refused lately, "
            f"last {newest['address']}: {newest['reason']}"
        )
    return "\n\n".join(parts)


def _guesses(serving: dict[str, Any]) -> str:
    """How guessing tokens ahead goes; nothing while none was tried."""
    figures, acceptance = serving.get("speculation"), serving.get("acceptance")
    if not figures or acceptance is None:
        return ""
    return f"; {acceptance:.0%} of drafts right, {figures['tokens_per_round']:.2f} tokens a row"


def _headline(document: dict[str, Any]) -> str:
    fleet, model = document["fleet"], document.get("model")
    names = {member["id"]: member["name"] for member in fleet["members"]}
    leader = names.get(fleet["leader"], "nobody yet")
    line = f"Fleet {fleet['id'][:8]}, epoch {fleet['epoch']}, led by {leader}."
    if not model or not model.get("id"):
        return f"{line} No model."
    state = model["state"]
    if state not in ("ready", "none", "failed"):
        state = f"{state} {model['progress']:.0%}"
    why = f" ({model['why']})" if model.get("why") else ""
    return f"{line} {model['id']}: {state}{why}."


def members_table(document: dict[str, Any]) -> str:
    """One line a PC."""
    fleet = document["fleet"]
    rows = []
    for member in fleet["members"]:
        stage = member.get("stage")
        role = "leader" if member["id"] == fleet["leader"] else "member"
        rows.append(
            [
                member["name"] + (" (this PC)" if member["id"] == document["node"]["id"] else ""),
                member["id"][:8],
                role,
                member["state"],
                ", ".join(member["devices"]) or "?",
                format_bytes(member["memory_free"]),
                f"layers {stage['first']}-{stage['last']}" if stage else "-",
            ]
        )
    return table(["PC", "id", "role", "state", "devices", "free for us", "stage"], rows)


def stages_table(document: dict[str, Any]) -> str:
    """One line a stage, with where its time goes."""
    plan = document["plan"]
    names = {member["id"]: member["name"] for member in document["fleet"]["members"]}
    speeds = (document.get("serving") or {}).get("stages") or []
    rows = []
    for index, stage in enumerate(plan["pipelines"][0]["stages"]):
        speed = speeds[index] if index < len(speeds) else None
        rows.append(
            [
                str(index),
                names.get(stage["node"], stage["node"][:8]),
                stage["device"],
                f"{stage['first']}-{stage['last']}",
                format_bytes(stage["bytes"]),
                format_bytes(stage["cache_bytes"]),
                stage.get("configuration", "-"),
                _phase(stage),
                f"{speed['compute_ms']:.1f}" if speed else "-",
                f"{speed['wait_ms']:.1f}" if speed else "-",
            ]
        )
    heads = [
        "stage",
        "PC",
        "device",
        "layers",
        "weights",
        "cache",
        "computes in",
        "phase",
        "compute ms",
        "wait ms",
    ]
    wire = (document.get("serving") or {}).get("wire_ms")
    tail = f"\n{wire:.2f} ms a hop on the wire" if wire is not None else ""
    return f"{plan['kind']}: {plan['why']}\n{table(heads, rows)}{tail}{_draft(plan, names)}"


def _draft(plan: dict[str, Any], names: dict[str, str]) -> str:
    """A line about the model that guesses ahead, or why there is none; nothing when none was
    asked for."""
    draft = plan.get("draft") or {}
    why = draft.get("why", "")
    if not draft.get("node"):
        return f"\nNo draft model: {why.rstrip('.')}." if why else ""
    name = names.get(draft["node"], draft["node"][:8])
    told = f" ({why})" if why else ""
    return (
        f"\ndraft model: {draft['model']} on {name} ({draft['device']}), "
        f"{format_bytes(draft['bytes'])}, {draft['state']}{told}"
    )


def _phase(stage: dict[str, Any]) -> str:
    """With progress while something takes a while: fetching, or calibrating and testing."""
    if stage["phase"] in ("fetching", "testing"):
        return f"{stage['phase']} {stage['progress']:.0%}"
    return str(stage["phase"])
