"""The records of alerts that people were sent, so that a later agent can send their end if this one's machine is gone.

Alertmanager ends by itself what it hears nothing more of. Slack and other receivers keep an alert until somebody ends it. So each
alert that such a receiver has taken is an object in the run's store, and a second object beside it marks its end. Whoever makes
the second one has sent the end, or sends it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ...hooks.checkpoint.format.keys import ended_alert_key, sent_alert_key, sent_alerts_prefix
from .writer import PATIENCE, StoreJob

#: Records that are read at once, the newest ones; and those that one process writes: they fit into a pipe.
_READ, _WRITTEN = 100, 40
_END = "-ended.json"


class SentAlerts:
    """The alerts of this helper that receivers have taken. One thread calls it.

    Args:
        host: this machine.
        start: starts a process on a store (`writer.StoreProcesses`).
    """

    def __init__(self, host: str, start: Callable[[StoreJob], None]) -> None:
        self._host = host
        self._start = start
        self._helper = os.urandom(16).hex()
        #: By run: its store, as far as known.
        self._stores: dict[str, str] = {}
        #: By run and labels: the id of the open record.
        self._open: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def know(self, run_id: str, store: str) -> None:
        """Take in the store of a run."""
        self._stores[run_id] = store

    def sent(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Record alerts that a receiver has taken, each as plain JSON with its labels, its status and its kind of incident."""
        began: dict[str, dict[str, Mapping[str, Any]]] = {}
        ended: dict[str, list[str]] = {}
        for each in messages:
            run_id, labels = str(each["labels"]["run_id"]), tuple(sorted(each["labels"].items()))
            key = (run_id, labels)
            if each["status"] == "firing" and key not in self._open and run_id in self._stores:
                self._open[key] = id = _id_of(each)
                began.setdefault(run_id, {})[id] = {**each, "host": self._host, "helper": self._helper}
            elif each["status"] == "resolved" and (known := self._open.pop(key, None)) is not None:
                ended.setdefault(run_id, []).append(known)
        for run_id in {*began, *ended}:
            news, over = [*began.get(run_id, {}).items()], ended.get(run_id, [])
            for at in range(0, max(len(news), len(over)), _WRITTEN):
                body = {
                    "store": self._stores[run_id],
                    "run_id": run_id,
                    "began": dict(news[at : at + _WRITTEN]),
                    "ended": over[at : at + _WRITTEN],
                    "helper": self._helper,
                }
                why = "the record of an alert was not written to the store [SG113]"
                self._start(StoreJob(__name__, body, why))

    def end_earlier(self, run_id: str, ended_by: Collection[str], then: Callable[[Any], None]) -> None:
        """Look for alerts of earlier agents that are over now that the run trains, and hand over those that nobody else ends.

        Args:
            run_id: the run.
            ended_by: the kinds of incidents that end as the run trains.
            then: takes the records.
        """
        if run_id in self._stores:
            body = {
                "store": self._stores[run_id],
                "run_id": run_id,
                "host": self._host,
                "helper": self._helper,
                "ended_by": sorted(ended_by),
            }
            why = f"alerts of an earlier agent of run {run_id} are not ended [SG113]"
            self._start(StoreJob(__name__, body, why, then))


def is_over(
    record: Mapping[str, Any],
    *,
    host: str,
    helper: str,
    machines: Collection[str] | None,
    ended_by: Collection[str],
) -> bool:
    """Return whether an alert is over now that its run trains, and no other helper will send its end. Pure.

    Args:
        record: the alert, as `SentAlerts` has recorded it.
        host: this machine.
        helper: the helper that asks.
        machines: the machines of the run's newest attempt; None if not all of them are known.
        ended_by: the kinds of incidents that end as the run trains.
    """
    incident = record.get("incident")
    if record.get("helper") == helper:
        return False
    if record.get("host") == host:
        # The earlier helper of this machine is gone. A metric is evaluated anew, and this agent guards the run again.
        return incident in ("", "agent-lost") or incident in ended_by
    if machines is None:
        return incident in ended_by
    return record.get("host") not in machines  # a machine of the run has a helper of its own


def _id_of(message: Mapping[str, Any]) -> str:
    """Return an id that no other alert has, and that sorts by time. hashlib and uuid would cost the helper 4 MiB."""
    return f"{message['startsAt'][:19].replace(':', '')}-{os.urandom(6).hex()}"


def _write(given: Mapping[str, Any]) -> None:
    from ...providers.stores.factory import open_store

    store, run_id = open_store(given["store"]), str(given["run_id"])
    for id, record in given["began"].items():
        data = memoryview(json.dumps(record, indent=1).encode())
        store.put_if_absent(sent_alert_key(run_id, id), data, timeout=PATIENCE)
    for id in given["ended"]:
        data = memoryview(json.dumps({"helper": given["helper"]}).encode())
        store.put_if_absent(ended_alert_key(run_id, id), data, timeout=PATIENCE)


def _read(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alerts that are over, each marked as ended: another helper that comes at the same time gets the others."""
    from ...hooks.checkpoint.attempts import attempt_record, newest_claim
    from ...providers.errors import NotFoundError
    from ...providers.stores.factory import open_store

    store, run_id = open_store(given["store"]), str(given["run_id"])
    names = [
        info.key.removeprefix(sent_alerts_prefix(run_id))
        for info in store.list(sent_alerts_prefix(run_id), timeout=PATIENCE)
    ]
    ended = {name.removesuffix(_END) for name in names if name.endswith(_END)}
    ids = [name.removesuffix(".json") for name in names if not name.endswith(_END)]
    left = [id for id in ids if id not in ended][-_READ:]
    if not left:
        return []
    newest = newest_claim(store, run_id, timeout=PATIENCE)
    claim = attempt_record(store, run_id, newest, timeout=PATIENCE) if newest else None
    named = claim.info.get("machines") if claim is not None else None
    complete = isinstance(named, list) and claim is not None and len(named) == claim.info.get("machine_count")
    found = []
    for id in left:
        try:
            record = json.loads(store.get(sent_alert_key(run_id, id), timeout=PATIENCE))
        except (NotFoundError, ValueError, RecursionError):
            continue
        if (
            isinstance(record, dict)
            and isinstance(record.get("labels"), dict)
            and is_over(
                record,
                host=given["host"],
                helper=given["helper"],
                machines=named if complete else None,
                ended_by=given["ended_by"],
            )
            and store.put_if_absent(
                ended_alert_key(run_id, id),
                memoryview(json.dumps({"helper": given["helper"]}).encode()),
                timeout=PATIENCE,
            )
        ):
            found.append(record)
    return found


def main() -> int:
    """Write the records that stdin has, or print those of earlier helpers that are over."""
    from ...hooks.checkpoint.format.keys import check_run_id
    from ...providers.errors import SpotguardError

    given = json.load(sys.stdin)
    try:
        check_run_id(given["run_id"])
        if "began" in given:
            _write(given)
        else:
            print(json.dumps(_read(given)))
    except SpotguardError as error:
        print(f"spotguard: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
