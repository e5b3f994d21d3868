"""The records of alerts that people were sent, so that a later agent can send their end if this one's machine is gone.

Alertmanager ends by itself what it hears nothing more of. Slack and other receivers keep an alert until somebody ends it. So each
alert that such a receiver has taken is an object in the run's store, and a second object marks that its end was taken, too. Before
a helper sends the end of another one's alert, it claims that by a third object, so that no two helpers do. If no end follows,
because it was killed or the receiver was away, the claim is void after ten minutes: an end that comes twice harms less than none.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...hooks.checkpoint.format.keys import (
    claimed_alert_key,
    ended_alert_key,
    sent_alert_key,
    sent_alerts_prefix,
)
from .writer import PATIENCE, StoreJob

if TYPE_CHECKING:  # this module is a part of the helper, too
    from ...providers.stores.base import BlobStore, ObjectInfo

#: Records that are read at once, the oldest ones of those that may be over; and those that one process writes: they fit into a pipe.
_READ, _WRITTEN = 100, 40
#: Seconds after which a claim without an end is void; and after which what has ended is deleted. By the store's clock and this one.
_VOID, _OLD = 600.0, 86400.0
#: An object's name: the time, the machine (`consensus.topology.machine_id`), and what no other alert has.
_NAME = re.compile(
    r"(?P<id>[-\dT]{17}-(?P<machine>(?P<boot>[0-9a-f]{8})-[0-9a-f]{8})-[0-9a-f]{12})"
    r"(?P<what>-ended|-claimed-(?P<number>\d{1,6}))?\.json"
)


class SentAlerts:
    """The alerts of this helper that receivers have taken. One thread calls it.

    Args:
        host: this machine's name, for people.
        machine: this machine and this agent's place on it (`consensus.topology.machine_id`).
        start: starts a process on a store (`writer.StoreProcesses`).
    """

    def __init__(self, host: str, machine: str, start: Callable[[StoreJob], None]) -> None:
        self._host, self._machine = host, machine
        self._start = start
        self._helper = os.urandom(16).hex()
        #: By run: its store, as far as known.
        self._stores: dict[str, str] = {}
        #: By run and labels: the id of the open record; and those of earlier agents, whose end is being sent.
        self._open: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._claimed: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
        #: By run: the look for alerts of earlier agents.
        self._looks: dict[str, StoreJob] = {}

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
                self._open[key] = id = self._id_of(each)
                began.setdefault(run_id, {})[id] = {**each, "host": self._host, "helper": self._helper}
            elif each["status"] == "resolved" and key in self._claimed:
                ended.setdefault(run_id, []).extend(self._claimed.pop(key))
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

    def end_earlier(
        self,
        run_id: str,
        ended_by: Collection[str],
        then: Callable[[list[dict[str, Any]]], None],
        *,
        every: bool,
    ) -> None:
        """Look for alerts of earlier agents that are over now that the run trains, and hand over those that nobody else ends.

        Args:
            run_id: the run.
            ended_by: the kinds of incidents that end as the run trains.
            then: takes the records.
            every: also look for those of machines that are gone. One helper of a run is enough for that.
        """

        def claimed(records: list[dict[str, Any]]) -> None:
            for each in records:
                labels = tuple(sorted((name, str(value)) for name, value in each["labels"].items()))
                self._claimed.setdefault((run_id, labels), []).append(each["id"])
            then(records)

        if run_id in self._stores:
            body = {
                "store": self._stores[run_id],
                "run_id": run_id,
                "machine": self._machine,
                "every": every,
                "helper": self._helper,
                "ended_by": sorted(ended_by),
            }
            why = f"alerts of an earlier agent of run {run_id} are not ended [SG113]"
            self._looks[run_id] = StoreJob(__name__, body, why, claimed)
            self._start(self._looks[run_id])

    def look_back(self) -> None:
        """Look again: what was not over may be over by now, and a claim may be void."""
        for job in self._looks.values():
            self._start(job)

    def _id_of(self, message: Mapping[str, Any]) -> str:
        """Return an id that no other alert has, and that sorts by time. hashlib and uuid would cost the helper 4 MiB."""
        return f"{message['startsAt'][:19].replace(':', '')}-{self._machine}-{os.urandom(6).hex()}"


def may_be_over(owner: str, *, machine: str, machines: Collection[str] | None, every: bool) -> bool:
    """Return whether this helper has to see to an alert of this machine: no other one will. Pure.

    Args:
        owner: the machine of the alert, with the place of its agent.
        machine: this machine, with the place of this agent.
        machines: those of the run's newest attempt; None if they are not known.
        every: whether this helper sees to machines that are gone.
    """
    if owner == machine:
        return True
    if machines is not None and owner in machines:
        return False  # it has a helper of its own
    return every or _boot(owner) == _boot(machine)


def is_over(
    record: Mapping[str, Any],
    owner: str,
    *,
    machine: str,
    helper: str,
    machines: Collection[str] | None,
    ended_by: Collection[str],
    now: float,
) -> bool:
    """Return whether an alert that `may_be_over` is over now that its run trains. Pure.

    Args:
        record: the alert, as `SentAlerts` has recorded it.
        owner: the machine of the alert, with the place of its agent.
        machine: this machine, with the place of this agent.
        helper: the helper that asks.
        machines: those of the run's newest attempt; None if they are not known.
        ended_by: the kinds of incidents that end as the run trains.
        now: Unix seconds.
    """
    incident, until = record.get("incident"), record.get("until")
    if record.get("helper") == helper:
        return False
    if incident in ended_by or (isinstance(until, (int, float)) and until <= now):
        return True
    # The earlier agent of a machine is gone: a metric is evaluated anew, and a new agent guards the run.
    anew = incident in ("", "agent-lost")
    if owner == machine or machines is None:
        return anew and owner == machine
    return anew or _boot(owner) not in {*map(_boot, machines), _boot(machine)}  # else it still has what broke


def _boot(machine: str) -> str:
    return machine.partition("-")[0]


def _write(given: Mapping[str, Any]) -> None:
    from ...providers.stores.factory import open_store

    store, run_id = open_store(given["store"]), str(given["run_id"])
    for id, record in given["began"].items():
        data = memoryview(json.dumps(record, indent=1).encode())
        store.put_if_absent(sent_alert_key(run_id, id), data, timeout=PATIENCE)
    for id in given["ended"]:
        store.put_if_absent(ended_alert_key(run_id, id), _by(given), timeout=PATIENCE)


def _by(given: Mapping[str, Any]) -> memoryview:
    return memoryview(json.dumps({"helper": given["helper"]}).encode())


class _Listing:
    """The objects of a run's alerts, by id."""

    def __init__(self, infos: Iterable[ObjectInfo], prefix: str) -> None:
        #: The machines of the records.
        self.owners: dict[str, str] = {}
        self.ended: dict[str, ObjectInfo] = {}
        #: The newest claim of each, with its number.
        self.claims: dict[str, tuple[int, ObjectInfo]] = {}
        for info in infos:
            if (name := _NAME.fullmatch(info.key.removeprefix(prefix))) is None:
                continue
            if name["number"] is not None:
                self.claims[name["id"]] = max(
                    self.claims.get(name["id"], (0, info)),
                    (int(name["number"]), info),
                    key=lambda each: each[0],
                )
            elif name["what"] is not None:
                self.ended[name["id"]] = info
            else:
                self.owners[name["id"]] = name["machine"]

    def next_claim(self, id: str, now: float) -> int:
        """Return the number of the claim that may be made now; 0 if another helper's holds."""
        number, info = self.claims.get(id, (0, None))
        return 0 if info is not None and now < (info.modified or now) + _VOID else number + 1


def _find(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the alerts that are over, each claimed: another helper that comes at the same time gets the others."""
    from ...providers.errors import NotFoundError
    from ...providers.stores.factory import open_store

    store, run_id, now = open_store(given["store"]), str(given["run_id"]), time.time()
    prefix = sent_alerts_prefix(run_id)
    listing = _Listing(store.list(prefix, timeout=PATIENCE), prefix)
    left = [id for id in sorted(listing.owners) if id not in listing.ended and listing.next_claim(id, now)]
    machines = _machines(store, run_id) if left else None
    mine = {"machine": given["machine"], "machines": machines}
    left = [id for id in left if may_be_over(listing.owners[id], every=given["every"], **mine)]
    over = {"helper": given["helper"], "ended_by": given["ended_by"], "now": now, **mine}
    for id in left[:_READ]:
        try:
            record = json.loads(store.get(sent_alert_key(run_id, id), timeout=PATIENCE))
        except (NotFoundError, ValueError, RecursionError):
            continue
        claim = claimed_alert_key(run_id, id, listing.next_claim(id, now))
        if (
            isinstance(record, dict)
            and isinstance(record.get("labels"), dict)
            and is_over(record, listing.owners[id], **over)
            and store.put_if_absent(claim, _by(given), timeout=PATIENCE)
        ):
            yield {**record, "id": id}
    _delete_old(store, run_id, listing, now)


def _machines(store: BlobStore, run_id: str) -> list[str] | None:
    """Return the machines of the run's newest attempt; None if they are not known."""
    from ...hooks.checkpoint.attempts import attempt_record, newest_claim

    newest = newest_claim(store, run_id, timeout=PATIENCE)
    claim = attempt_record(store, run_id, newest, timeout=PATIENCE) if newest else None
    found = claim.info.get("machine_ids") if claim is not None else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else None


def _delete_old(store: BlobStore, run_id: str, listing: _Listing, now: float) -> None:
    """Delete alerts whose end was sent a day ago: each listing would get longer."""
    old = [id for id, info in listing.ended.items() if 0 < info.modified < now - _OLD]
    if not old:
        return
    # An alert without the mark of its end would be open again.
    store.delete([sent_alert_key(run_id, id) for id in old if id in listing.owners], timeout=PATIENCE)
    claims = [
        claimed_alert_key(run_id, id, number)
        for id in old
        if id in listing.claims
        for number in range(1, listing.claims[id][0] + 1)
    ]
    store.delete([*claims, *(ended_alert_key(run_id, id) for id in old)], timeout=PATIENCE)


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
            for record in _find(given):
                # Each at once: a store that hangs later must not lose it.
                print(json.dumps(record), flush=True)
    except SpotguardError as error:
        print(f"spotguard: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
