"""A stranger's grammar, before this process compiles it (case S10).

llguidance's own limits leave gaps: forty patterns that must all hold take minutes, and a chain of
references overflows the stack and ends the process. So every new grammar is compiled in a child
process first. Called by the compiler; blocks for a quarter of a second.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import psutil

from meshinfer.core.request import Grammar
from meshinfer.errors import InvalidRequest, StageFailed

PARAM = "response_format"
_COMMAND = (sys.executable, "-m", "meshinfer.engine.grammar_trial")
_POLL_S = 0.02
_MOST_OUTPUT = 64 << 10
_SIMPLIFY = "Simplify it."


@dataclass(frozen=True, slots=True)
class TrialLimits:
    seconds: float = 5.0  # an ordinary schema takes 0.01 beside the start of Python
    memory_bytes: int = 192 << 20  # of which Python and llguidance take 50 MB


LIMITS = TrialLimits()


def check_grammar(grammar: Grammar, limits: TrialLimits = LIMITS) -> None:
    """Raises InvalidRequest: the grammar is wrong, or too large for the limits. StageFailed: the
    child process cannot be started."""
    order = json.dumps({"kind": grammar.kind.value, "text": grammar.text}).encode()
    try:
        child = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise StageFailed(
            "No process can be started to check a grammar.", "Free memory on the leading PC."
        ) from error
    with child:
        giving = _give(child, order)
        try:
            _watch(child, limits)
        finally:
            child.kill()
            giving.join()
        assert child.stdout is not None
        said = child.stdout.read(_MOST_OUTPUT)
    _judge(said)


def _give(child: subprocess.Popen[bytes], order: bytes) -> threading.Thread:
    """Without waiting for the child to read: a pipe may hold less than a grammar. The thread ends
    with the child at the latest."""
    stdin = child.stdin
    assert stdin is not None

    def write() -> None:
        with contextlib.suppress(OSError):  # it has ended: the judge sees that
            stdin.write(order)
        with contextlib.suppress(OSError):
            stdin.close()

    thread = threading.Thread(target=write, name="grammar", daemon=True)
    thread.start()
    return thread


def _watch(child: subprocess.Popen[bytes], limits: TrialLimits) -> None:
    end = time.monotonic() + limits.seconds
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            return
        if time.monotonic() > end:
            raise InvalidRequest(
                f"The grammar or schema takes more than {limits.seconds:g} s to compile.",
                _SIMPLIFY,
                PARAM,
            )
        if _memory(child.pid) > limits.memory_bytes:
            raise InvalidRequest(
                "The grammar or schema takes more than "
                f"{limits.memory_bytes >> 20} MB of memory to compile.",
                _SIMPLIFY,
                PARAM,
            )


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0  # it has just ended


def _judge(said: bytes) -> None:
    try:
        reason = json.loads(said)["error"]
    except ValueError as error:
        raise InvalidRequest(
            "The grammar or schema is nested too deeply to compile.", _SIMPLIFY, PARAM
        ) from error
    if reason:
        raise InvalidRequest(f"The grammar or schema cannot be used: {reason}.", "Mend it.", PARAM)
