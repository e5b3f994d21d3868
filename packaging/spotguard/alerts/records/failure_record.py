"""The record of a failure whose rank was killed, maybe in the save for its own error: it could write none itself.

The records of `hooks.control.report` stand beside it, in the same form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ...hooks.ipc.failure_classes import CLASSES, DEATHS
from ..readings.kernel_log import KernelFinding
from .writer import PATIENCE, StoreJob

#: The class of a death by a signal, which is none of an error's (`agent.core.failures.errors`).
_KILLED = "killed"
_MEMORY = "host-memory"


def diagnosed(facts: Mapping[str, Any], findings: Iterable[KernelFinding]) -> dict[str, Any]:
    """Return the failure with what the kernel's log adds: a second source, and a class where the agent knew only a signal."""
    pid, kind = facts.get("pid"), facts.get("class")
    told = [each for each in findings if _is_of(each, pid) or each.scope == "machine"]
    evidence = [*facts.get("evidence", ()), *(f"the kernel's log: {each.text}" for each in told)]
    sure = any(_is_of(each, pid) for each in told)
    confidence = "high" if sure else facts.get("confidence", "low")
    if kind == _KILLED and any(each.kind == "oom" for each in told):
        kind = _MEMORY
    if kind == _KILLED and any(each.kind == "xid" for each in told):
        kind = "gpu"
        confidence = "high" if sure else "medium"  # another process may have met that GPU's error
    # The agent has decided and counted by its own class, so the next start counts that one, too.
    counted = {} if kind == facts.get("class") else {"counted": facts["class"]}
    return {**facts, "class": kind, "evidence": evidence, "confidence": confidence, **counted}


def _is_of(finding: KernelFinding, pid: int | None) -> bool:
    return bool(finding.pid) and finding.pid == pid


def needs_record(facts: Mapping[str, Any]) -> bool:
    """Return whether nobody else has recorded the failure, and a store is known for it."""
    return bool(facts.get("store") and facts.get("run_id")) and not facts.get("reported")


def record_of(facts: Mapping[str, Any], ended: float) -> dict[str, Any]:
    """Return the record, with the keys of a record that a rank writes itself."""
    known = {**CLASSES, **DEATHS}.get(str(facts["class"]), DEATHS[_KILLED])
    return {
        "kind": facts["class"],
        **({"counted": facts["counted"]} if "counted" in facts else {}),
        "evidence": facts.get("evidence", []),
        "confidence": facts.get("confidence", "low"),
        "error": facts.get("error", ""),
        "message": facts.get("message") or facts.get("text", ""),
        "phase": facts.get("phase", ""),
        "where": facts.get("where", ""),
        "stack": [],
        "fingerprint": facts.get("fingerprint", ""),
        "stays": facts.get("stays", False),
        "says": known.says,
        "advice": known.advice,
        "step": facts.get("step"),
        "newest_checkpoint": facts.get("newest_checkpoint"),
        "returncode": facts.get("returncode"),
        "rank": facts.get("rank"),
        "ended": ended,
        "by": "agent",
    }


def with_kill(own: bytes, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a rank's own record with the kernel's kill as its cause; None if it has that, or is none.

    A rank whose loader's worker was killed for memory knows only that the worker is gone. The next start counts the classes of
    records, and the report shows them.

    Args:
        own: the record that the rank has written.
        record: the agent's, of the kill.
    """
    try:
        known = json.loads(own)
    except (ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or known.get("kind") == record["kind"]:
        return None
    evidence = known.get("evidence")
    told = [*(evidence if isinstance(evidence, list) else ()), *record["evidence"]]
    names = ("kind", "counted", "confidence", "says", "advice", "returncode")
    cause = {name: record[name] for name in names if name in record}
    return {**known, **cause, "evidence": told}


def _data(record: Mapping[str, Any]) -> memoryview:
    return memoryview(json.dumps(record, indent=1).encode())


def job_of(facts: Mapping[str, Any], now: float) -> StoreJob:
    """Return the job that writes the record of a failure, for `writer.StoreProcesses`.

    Args:
        facts: the failure.
        now: wall seconds.
    """
    return StoreJob(
        __name__,
        {"facts": dict(facts), "ended": now},
        "the record of a failure was not written to the store [SG113]",
    )


def main() -> int:
    """Write the record that stdin has."""
    from ...hooks.checkpoint.attempts import create_once, newest_claim
    from ...hooks.checkpoint.format.keys import check_run_id, failure_key
    from ...providers.errors import SpotguardError
    from ...providers.stores.factory import open_store

    given = json.load(sys.stdin)
    facts = given["facts"]
    try:
        store, run_id = open_store(facts["store"]), check_run_id(facts["run_id"])
        attempt = facts.get("attempt")
        if attempt is None or attempt < 0:  # it died before it told
            attempt = newest_claim(store, run_id, timeout=PATIENCE)
        key = failure_key(run_id, attempt, facts.get("rank") or 0)
        record = record_of(facts, given["ended"])
        # A rank that wrote a record by itself knows more, except of a kill by the kernel.
        if not create_once(store, key, _data(record), timeout=PATIENCE) and record["kind"] == _MEMORY:
            own = with_kill(store.get(key, timeout=PATIENCE), record)
            if own is not None:
                store.put(key, _data(own), timeout=PATIENCE)
    except SpotguardError as error:
        print(f"spotguard: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
