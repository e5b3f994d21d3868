"""The record of a failure that only the agent saw: a rank that was killed could write none itself.

The records of `hooks.control.report` stand beside it, in the same form. The writer is a process of its own, because a store's SDK
is too large for the helper, and because a store may hang: the helper kills it then.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ...hooks.ipc.failure_classes import CLASSES
from ...providers.clock import Clock
from ..readings.kernel_log import KernelFinding

log = logging.getLogger("spotguard.agent")

#: Seconds for the store.
PATIENCE = 20.0
#: The class of a death by a signal, which is none of an error's (`agent.core.failures.errors`).
_KILLED = "killed"
_ADVICE = "see dmesg, and the log of the scheduler"


def diagnosed(facts: Mapping[str, Any], findings: Iterable[KernelFinding]) -> dict[str, Any]:
    """Return the failure with what the kernel's log adds: a second source, and a class where the agent knew only a signal."""
    pid, kind = facts.get("pid"), facts.get("class")
    told = [each for each in findings if _is_of(each, pid) or each.scope == "machine"]
    evidence = [*facts.get("evidence", ()), *(f"the kernel's log: {each.text}" for each in told)]
    sure = any(_is_of(each, pid) for each in told)
    confidence = "high" if sure else facts.get("confidence", "low")
    if kind == _KILLED and any(each.kind == "oom" for each in told):
        kind = "host-memory"
    if kind == _KILLED and any(each.kind == "xid" for each in told):
        kind = "gpu"
        confidence = "high" if sure else "medium"  # another process may have met that GPU's error
    return {**facts, "class": kind, "evidence": evidence, "confidence": confidence}


def _is_of(finding: KernelFinding, pid: int | None) -> bool:
    return bool(finding.pid) and finding.pid == pid


def needs_record(facts: Mapping[str, Any]) -> bool:
    """Return whether nobody else has recorded the failure, and a store is known for it."""
    return bool(facts.get("store") and facts.get("run_id")) and not facts.get("reported")


def record_of(facts: Mapping[str, Any], ended: float) -> dict[str, Any]:
    """Return the record, with the keys of a record that a rank writes itself."""
    known = CLASSES.get(str(facts["class"]))
    return {
        "kind": facts["class"],
        "evidence": facts.get("evidence", []),
        "confidence": facts.get("confidence", "low"),
        "error": "",
        "message": facts.get("text", ""),
        "phase": facts.get("phase", ""),
        "where": facts.get("where", ""),
        "stack": [],
        "fingerprint": "",
        "stays": False,
        "says": known.says if known else "a process was killed",
        "advice": known.advice if known else _ADVICE,
        "step": facts.get("step"),
        "newest_checkpoint": facts.get("newest_checkpoint"),
        "returncode": facts.get("returncode"),
        "rank": facts.get("rank"),
        "ended": ended,
        "by": "agent",
    }


class RecordWriter:
    """The writers at work. One thread calls it.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: list[tuple[float, subprocess.Popen[bytes]]] = []

    def write(self, facts: Mapping[str, Any]) -> None:
        """Write the record of a failure to the run's store. Never blocks."""
        body = {
            "store": facts["store"],
            "run_id": facts["run_id"],
            "attempt": facts.get("attempt"),
            "rank": facts.get("rank") or 0,
            "record": record_of(facts, self._clock.time()),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )
        self._running.append((self._clock.monotonic() + PATIENCE, process))
        assert process.stdin is not None
        with process.stdin as given:
            given.write(json.dumps(body).encode())  # a few KiB: a pipe takes 64

    def busy(self) -> bool:
        """Return whether a writer works. One that is out of time is killed."""
        left = []
        for until, process in self._running:
            if process.poll() is not None:
                if process.returncode:
                    log.warning("the record of a failure was not written to the store [SG113]")
            elif self._clock.monotonic() >= until:
                process.kill()
                process.wait()
                log.warning(
                    "the record of a failure was not written: the store took more than %.0f s [SG113]",
                    PATIENCE,
                )
            else:
                left.append((until, process))
        self._running = left
        return bool(left)

    def close(self) -> None:
        """Kill the writers that are left."""
        for _, process in self._running:
            process.kill()
            process.wait()
        self._running = []


def main() -> int:
    """Write the record that stdin has."""
    from ...hooks.checkpoint.attempts import newest_claim
    from ...hooks.checkpoint.format.keys import check_run_id, failure_key
    from ...providers.errors import SpotguardError
    from ...providers.stores.factory import open_store

    given = json.load(sys.stdin)
    try:
        store, run_id = open_store(given["store"]), check_run_id(given["run_id"])
        attempt = given["attempt"]
        if attempt is None or attempt < 0:  # it died before it told
            attempt = newest_claim(store, run_id, timeout=PATIENCE)
        data = json.dumps(given["record"], indent=1).encode()
        # A rank that wrote a record by itself knows more.
        store.put_if_absent(failure_key(run_id, attempt, given["rank"]), memoryview(data), timeout=PATIENCE)
    except SpotguardError as error:
        print(f"spotguard: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
