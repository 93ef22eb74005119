"""What the leader knows of the model, the plan and the serving: said once, shown on every PC."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshinfer.core.calibration_report import CalibrationReport
from meshinfer.core.ids import ModelId
from meshinfer.core.model import ModelShape
from meshinfer.core.plan import DraftPlan, NoPlan, Plan
from meshinfer.core.request import ServedModel
from meshinfer.core.units import format_bytes
from meshinfer.errors import MeshInferError, NotEnoughMemory, NotReady, ProtocolViolation
from meshinfer.wire.commit import StageReport


class ModelState(StrEnum):
    NONE = "none"  # nobody said which model
    FETCHING = "fetching"
    PLANNING = "planning"
    WAITING = "waiting"  # for memory: there is no plan
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    model: ModelId | None
    state: ModelState
    progress: float = 0.0
    why: str = ""


class Board:
    """Set by the leader's term; read by the status, the door and the reports to followers."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.status = ModelStatus(None, ModelState.NONE)
        self.served: ServedModel | None = None
        self.plan: Plan | None = None
        self.no_plan: NoPlan | None = None
        self.reports: dict[tuple[int, int], StageReport] = {}
        self.drafting: tuple[StageReport | None, MeshInferError | None] = None, None
        self.no_draft = ""  # why no model drafts, where one might
        self.serving: dict[str, Any] = {}

    def say(self, status: ModelStatus) -> None:
        """A new state of the model; a word about it goes out at once."""
        self.status = status
        self.changed.set()

    def problem(self) -> MeshInferError:
        """Why a request cannot be answered now."""
        status = self.status
        if self.no_plan is not None and status.state is ModelState.WAITING:
            return NotEnoughMemory(
                f"{status.model} does not fit: {format_bytes(self.no_plan.needed_bytes)} are "
                f"needed, {format_bytes(self.no_plan.available_bytes)} are available. "
                f"{self.no_plan.why}",
                "Add a PC, free memory or choose a smaller model.",
            )
        if status.state is ModelState.NONE:
            return NotReady(
                "The fleet has no model.", "Run: meshinfer pull MODEL, then up --model MODEL."
            )
        if status.state is ModelState.FAILED:
            return NotReady(f"{status.model} could not be loaded: {status.why}")
        return NotReady(
            f"{status.model} is {status.state} ({status.progress:.0%}).", "Try again in a moment."
        )

    def document(self) -> dict[str, Any]:
        """The leader's part of `status --json`."""
        status = self.status
        return {
            "model": {
                "id": status.model,
                "state": status.state.value,
                "progress": round(status.progress, 3),
                "why": status.why,
                "created": self.served.created if self.served else 0,
                "context_length": self.served.context_length if self.served else 0,
            },
            "plan": self._plan_document(),
            "no_plan": no_plan_document(self.no_plan) if self.no_plan else None,
            "serving": self.serving,
        }

    def _plan_document(self) -> dict[str, Any] | None:
        if self.plan is None:
            return None
        draft = draft_document(self.plan.draft, *self.drafting, self.no_draft)
        return plan_document(self.plan, self.reports) | {"draft": draft}

    def text(self) -> str:
        return json.dumps(self.document())


def plan_document(plan: Plan, reports: dict[tuple[int, int], StageReport]) -> dict[str, Any]:
    """A plan in the words of the contract."""
    return {
        "id": plan.id,
        "epoch": plan.epoch.counter,
        "kind": plan.kind.value,
        "why": plan.why,
        "precision": plan.precision,
        "context_length": plan.context_length,
        "cache_tokens": plan.cache_tokens,
        "pipelines": [
            {
                "stages": [
                    {
                        "node": stage.node,
                        "device": stage.device,
                        "first": stage.first_layer,
                        "last": stage.last_layer,
                        "units": [stage.units.first, stage.units.end],
                        "bytes": stage.weight_bytes,
                        "cache_bytes": stage.cache_bytes,
                        **_report_document(reports.get((pipeline, index))),
                    }
                    for index, stage in enumerate(pipe.stages)
                ]
            }
            for pipeline, pipe in enumerate(plan.pipelines)
        ],
    }


def draft_document(
    draft: DraftPlan | None,
    report: StageReport | None,
    error: MeshInferError | None,
    no_draft: str,
) -> dict[str, Any]:
    """The model that guesses ahead. `state` is a stage's phase, "failed", or "none"."""
    if draft is None:
        return {"state": "none", "why": no_draft}
    state = "failed" if error is not None else report.phase.value if report else "planned"
    return {
        "node": draft.stage.node,
        "device": draft.stage.device,
        "model": draft.model,
        "bytes": draft.stage.weight_bytes,
        "cache_bytes": draft.stage.cache_bytes,
        "state": state,
        "why": str(error) if error is not None else "",
    }


def _report_document(report: StageReport | None) -> dict[str, Any]:
    if report is None:
        return {"phase": "planned", "progress": 0.0, "why": ""}
    return {
        "phase": report.phase.value,
        "progress": round(report.progress, 3),
        "why": report.why,
        **_calibration_document(report.calibration),
    }


def _calibration_document(text: str) -> dict[str, Any]:
    """How a stage is configured on its device, and what that brings; empty before it is ready."""
    if not text:
        return {}
    try:
        report = CalibrationReport.from_text(text)
    except ProtocolViolation:
        return {}
    return {
        "configuration": report.configuration,
        "calibration": {
            "source": report.source,
            "accuracy": report.accuracy,
            "step_ms": {rows: round(1000 * s, 2) for rows, s in report.curve.decode},
            "prompt_ms": {tokens: round(1000 * s, 2) for tokens, s in report.curve.prefill},
            "other": report.other,
            "other_time": report.other_time,
            "trials": list(report.notes),
        },
    }


def no_plan_document(no_plan: NoPlan) -> dict[str, Any]:
    """Why there is no plan, with every PC's room."""
    return {
        "why": no_plan.why,
        "needed": no_plan.needed_bytes,
        "available": no_plan.available_bytes,
        "rooms": [{"node": node, "room": room} for node, room in no_plan.rooms],
    }


def served_model(shape: ModelShape, plan: Plan, created: int) -> ServedModel:
    return ServedModel(shape.model, created, plan.context_length)
