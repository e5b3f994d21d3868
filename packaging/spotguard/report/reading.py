"""The reading of a run's facts: one listing, then the small records, and one marker for each attempt.

No request is made for each checkpoint: a run may have thousands. Their steps and dates are in the listing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spotguard.agent.core.ending.stall_response import STALL_WINDOW
from spotguard.hooks.arguments.settings import extras_worth
from spotguard.hooks.checkpoint.attempts import attempt_record
from spotguard.hooks.checkpoint.catalog import CheckpointFolder, folders_of, whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import decode_manifest, decode_marker
from spotguard.hooks.checkpoint.format.entries import record
from spotguard.hooks.checkpoint.format.keys import (
    MARKER,
    attempts_prefix,
    checkpoints_prefix,
    manifest_name,
    parse_attempt,
    parse_manifest_name,
)
from spotguard.hooks.checkpoint.format.manifest import LEVELS, AttemptRecord, CommitMarker, RankManifest
from spotguard.hooks.checkpoint.ranking import worth_it
from spotguard.hooks.ipc.failures.phase_times import LEAST
from spotguard.hooks.ipc.threads import side_by_side
from spotguard.providers.errors import CheckpointError, NotFoundError
from spotguard.providers.stores.base import BlobStore, ObjectInfo

from .events import EVENTS
from .facts import (
    AttemptFacts,
    CheckpointFact,
    EventFact,
    RunFacts,
    entries,
    known_facts,
    number,
    text,
    whole,
)
from .stalls import READ, STALLS, RankStacks, StacksKey, parse_stacks_key, stall_fact

#: Records that are read of one attempt: the first failed ranks, because the others most likely failed for want of these; more of them
#: if none of these is a cause; and the newest notices.
_FAILED_RANKS, _MORE_RANKS, _NOTICES = 8, 56, 200
_RECORD = re.compile(
    r"(?P<kind>outcomes|failures|ends)/(?P<attempt>\d{4,15})(?:-(?P<rest>[\d-]+))?\.json", re.ASCII
)
_DISMISSED = re.compile(r"dismissed/((?:failure|stall)-[\d-]+)\.json", re.ASCII)


class RunListing:
    """The part of a store's listing that belongs to one run.

    Args:
        store: the store.
        run_id: the run.
        infos: the objects below the run's directory.
    """

    def __init__(self, store: BlobStore, run_id: str, infos: Iterable[ObjectInfo]) -> None:
        self.store, self.run_id = store, run_id
        #: Keys of the records of each attempt, by kind, with their dates.
        self.records: dict[int, dict[str, list[ObjectInfo]]] = defaultdict(lambda: defaultdict(list))
        #: The time of the newest object of each attempt, by the store's clock.
        self.touched: dict[int, float] = defaultdict(float)
        self.claims: set[int] = set()
        #: The ids of the alarms that a person has dismissed.
        self.dismissed: set[str] = set()
        #: The records of stacks of each attempt.
        self.stacks: dict[int, list[tuple[StacksKey, ObjectInfo]]] = defaultdict(list)
        below: list[ObjectInfo] = []
        attempts, checkpoints = attempts_prefix(run_id), checkpoints_prefix(run_id)
        for info in infos:
            if info.key.startswith(checkpoints):
                below.append(info)
            elif info.key.startswith(attempts):
                if (claim := parse_attempt(run_id, info.key)) is not None:
                    self.claims.add(claim)
                    self._touch(claim, info)
            elif match := _DISMISSED.fullmatch(info.key.removeprefix(f"{run_id}/")):
                self.dismissed.add(match[1])
            elif (found := parse_stacks_key(info.key.removeprefix(f"{run_id}/"))) is not None:
                self.stacks[found.attempt].append((found, info))
            elif match := _RECORD.fullmatch(info.key.removeprefix(f"{run_id}/")):
                self.records[int(match["attempt"])][match["kind"]].append(info)
                self._touch(int(match["attempt"]), info)
        #: Its checkpoints, newest first.
        self.folders = folders_of(run_id, below)
        #: The complete ones of each attempt, newest first.
        self.complete: dict[int, list[CheckpointFolder]] = defaultdict(list)
        for folder in self.folders:
            if folder.complete:
                self.complete[folder.name.attempt].append(folder)
            self.touched[folder.name.attempt] = max(
                self.touched[folder.name.attempt], folder.put, folder.announced
            )

    def _touch(self, attempt: int, info: ObjectInfo) -> None:
        self.touched[attempt] = max(self.touched[attempt], info.modified)

    @property
    def attempts(self) -> list[int]:
        """The numbers of all attempts that left a trace, in order."""
        return sorted(self.claims | self.records.keys() | {each.name.attempt for each in self.folders})

    @property
    def newest(self) -> CheckpointFolder | None:
        """The newest complete checkpoint."""
        return self.complete[max(self.complete)][0] if self.complete else None

    def claim(self, attempt: int) -> AttemptRecord | None:
        """Return the record of one start. One request."""
        return attempt_record(self.store, self.run_id, attempt) if attempt in self.claims else None

    def events(self, attempt: int, notices: int = _NOTICES) -> tuple[EventFact, ...]:
        """Return the events of one attempt, the oldest first. One request for each.

        Args:
            attempt: the attempt.
            notices: the most records of notices that are read.
        """
        found: list[EventFact] = []
        for kind, infos in self.records.get(attempt, {}).items():
            some = sorted(infos, key=lambda info: (info.modified, info.key))
            if kind == "failures":
                found += self._errors(attempt, some)
            else:
                found += self._read(kind, attempt, some[-notices:])
        # A rank that its launcher ends right after the save has no time for its record.
        if not any(event.kind == "error" for event in found):
            found = [replace(each, kind="error") if each.kind == "save" else each for each in found]
        return tuple(sorted(map(self._judged, found), key=lambda event: event.at))

    def _errors(self, attempt: int, infos: Sequence[ObjectInfo]) -> Iterator[EventFact]:
        """Yield the errors of the ranks that failed first. If each follows from another rank's, yield more until one is a cause.

        The newest of these come first: the agent records a rank that was killed after the others have lost it as a peer.
        """
        first = [*self._read("failures", attempt, infos[:_FAILED_RANKS])]
        yield from first
        if all(each.follows for each in first):
            for event in self._read("failures", attempt, infos[_FAILED_RANKS:][::-1][:_MORE_RANKS]):
                yield event
                if not event.follows:
                    return

    def _read(self, kind: str, attempt: int, infos: Iterable[ObjectInfo]) -> Iterator[EventFact]:
        for info in infos:
            if (event := EVENTS[kind](_json(self.store, info.key), info.modified)) is not None:
                yield replace(event, put=info.modified, id=_alarm(event.kind, attempt, info.key))

    def _judged(self, event: EventFact) -> EventFact:
        """Return the event, marked if a person has dismissed it. The save at a false failure stays a save."""
        false = event.id in self.dismissed and event.kind != "save"
        return replace(event, kind=f"false-{event.kind}") if false else event

    def stalls(self, attempt: AttemptFacts) -> Iterator[tuple[EventFact, dict[int, ObjectInfo]]]:
        """Yield the stalls of an attempt of which there are stacks, each with its ranks' records.

        The ranks count their own stalls, so a record belongs to the stall that is nearest by the store's clock. If that has a record
        of its rank already, the farther ones are of a stall whose outcome is missing: no rank could answer, or rank 0 has ended.
        """
        records = sorted(self.stacks.get(attempt.number, ()), key=lambda each: each[1].modified)
        known = [each for each in attempt.events if each.kind in ("stall", "false-stall")]
        known = known or [each for each in attempt.events if each.failure and each.failure.kind == "stall"]
        nearest: dict[int, list[tuple[StacksKey, ObjectInfo]]] = defaultdict(list)
        for key, info in records:
            dates = [_apart(key, info.modified, each) for each in known]
            nearest[dates.index(min(dates)) if dates else -1].append((key, info))
        others = _one_stall_each(nearest.pop(-1, []))
        for at, near in sorted(nearest.items()):
            stalls = _one_stall_each(near)
            own = min(
                stalls, key=lambda each: min(abs(known[at].put - info.modified) for info in each.values())
            )
            yield known[at], own
            others += [each for each in stalls if each is not own]
        for count, ranks in enumerate(others, 1):
            put = min(info.modified for info in ranks.values())
            id = f"stall-{attempt.number:04d}-00" + (f"-{count}" if count > 1 else "")
            yield self._judged(EventFact("stall", put, "training stood still", put=put, id=id)), ranks

    def history(self, folder: CheckpointFolder | None) -> Mapping[str, Any]:
        """Return the history that a checkpoint carries; {} if it has none. One request, at most two."""
        told = self._told(folder)
        return {} if told is None else told.history

    def _told(self, folder: CheckpointFolder | None) -> CommitMarker | RankManifest | None:
        if folder is None:
            return None
        try:
            if MARKER in folder.files:
                key = folder.prefix + MARKER
                return decode_marker(self.store.get(key), key)
            worlds = {parsed[1] for name in folder.files if (parsed := parse_manifest_name(name))}
            key = folder.prefix + manifest_name(0, min(worlds))
            return decode_manifest(self.store.get(key), key)
        except (CheckpointError, NotFoundError):  # damaged, or pruned meanwhile
            return None

    def next_start(self) -> tuple[CheckpointFolder | None, Mapping[str, Any]]:
        """Return the checkpoint that the next start restores, and its history.

        That is the newest one, unless it lacks a part: then a restore may use an older full one, and the manifests decide.
        """
        told = self._told(self.newest)
        if told is None or told.level == "full":
            return self.newest, {} if told is None else told.history
        candidates = whole_checkpoints(self.store, self.run_id, levels=LEVELS, indexed=True)
        try:
            name = next((each.name for each in worth_it(candidates, extras_worth())), None)
        except CheckpointError:  # a restore would refuse it
            name = None
        folder = next((each for each in self.folders if each.name == name), self.newest)
        return folder, told.history if folder is self.newest else self.history(folder)

    def attempt(
        self,
        attempt: int,
        told: Mapping[str, Any],
        handed: Mapping[str, Any] | None = None,
        notices: int = _NOTICES,
    ) -> AttemptFacts:
        """Return the facts of one attempt. A request for its claim, and one for each record.

        Args:
            attempt: the attempt.
            told: the history that its newest checkpoint carries.
            handed: what later attempts handed on of it.
            notices: the most records of notices that are read.
        """
        claim, events = self.claim(attempt), self.events(attempt, notices)
        own = self.complete.get(attempt, [])
        facts = known_facts(
            [
                (-1.0, handed or {}),
                (own[0].put if own else 0.0, told),
                *((each.put, each.history) for each in events),
            ]
        )
        info = dict(claim.info) if claim is not None else {}
        slurm = [number(each, "since") for each in entries(info, "launchers")]
        names = info.get("machines")
        return AttemptFacts(
            number=attempt,
            started=None if claim is None else number({"created": claim.created}, "created") or None,
            world=None if claim is None else claim.world,
            machines=tuple(text({"name": str(name)}, "name") for name in names)
            if isinstance(names, list)
            else (),
            machine_count=whole(info, "machine_count"),
            available=next((each for each in slurm if each is not None), number(info, "up")),
            history=facts,
            checkpoints=tuple(
                CheckpointFact(each.name.step, each.put, bool(each.announced), sum(each.files.values()))
                for each in reversed(own)
            ),
            events=events,
            touched=self.touched.get(attempt, 0.0),
        )


def read_run(store: BlobStore, run_id: str, now: float) -> RunFacts:
    """Return the facts of one run.

    Raises:
        StoreError: the store failed.
    """
    listing = RunListing(store, run_id, store.list(f"{run_id}/"))
    newest, history = listing.next_start()
    earlier = {whole(each, "attempt"): each for each in entries(history, "earlier")}

    def read(attempt: int) -> AttemptFacts:
        own = listing.complete.get(attempt, [])
        told = listing.history(own[0] if own else None) if newest not in own[:1] else history
        return listing.attempt(attempt, told, earlier.get(attempt, {}))

    attempts = _with_stacks(listing, side_by_side(read, listing.attempts))
    resumes = None if newest is listing.newest or newest is None else (newest.name.attempt, newest.name.step)
    return RunFacts(store.url, run_id, attempts, history, now, resumes)


def _with_stacks(listing: RunListing, attempts: Sequence[AttemptFacts]) -> tuple[AttemptFacts, ...]:
    """Return the attempts with the stacks of the run's newest stalls. One request for each rank that is read."""
    stalls = [(each, event, ranks) for each in attempts for event, ranks in listing.stalls(each)]
    newest = sorted(stalls, key=lambda each: each[1].put, reverse=True)[:STALLS]
    keys = [(at, rank, ranks[rank].key) for at, (_, _, ranks) in enumerate(newest) for rank in sorted(ranks)][
        :READ
    ]
    read = side_by_side(lambda each: RankStacks.of(each[1], _json(listing.store, each[2])), keys)
    events = {each.number: [*each.events] for each in attempts}
    for at, (attempt, event, ranks) in enumerate(newest):
        found = [each for (stall, *_), each in zip(keys, read, strict=True) if stall == at]
        with_stacks = replace(event, stall=stall_fact(found, ranks.keys(), attempt.world))
        others = [each for each in events[attempt.number] if each is not event]
        events[attempt.number] = sorted([*others, with_stacks], key=lambda each: each.at)
    return tuple(replace(each, events=tuple(events[each.number])) for each in attempts)


def _apart(key: StacksKey, put: float, stall: EventFact) -> float:
    """Return the seconds between the put of a record of stacks and a stall, by the store's clock.

    A rank writes its own record at the end of the stall's save. The agent writes that of a rank in native code as the stall begins,
    so the stall before may end nearer to it; but no stall begins in the minute after another one.
    """
    took = stall.seconds if stall.committed else STALL_WINDOW
    if key.held and -took - LEAST < put - stall.put < LEAST:
        return 0.0
    return abs(put - stall.put)


def _one_stall_each(records: Iterable[tuple[StacksKey, ObjectInfo]]) -> list[dict[int, ObjectInfo]]:
    """Return records of stacks, the oldest first, as those of each stall by rank: a rank has one in each, and the agent one of it."""
    stalls: list[dict[int, ObjectInfo]] = []
    there: set[tuple[int, bool]] = set()
    for key, info in records:
        if not stalls or (key.rank, key.held) in there:
            stalls.append({})
            there.clear()
        there.add((key.rank, key.held))
        stalls[-1][key.rank] = info
    return stalls


def _alarm(kind: str, attempt: int, key: str) -> str:
    if kind == "stall":
        return f"stall-{key.rpartition('/')[2].removesuffix('.json')}"
    return f"failure-{attempt:04d}" if kind in ("error", "save") else ""


def _json(store: BlobStore, key: str) -> dict[str, Any]:
    try:
        return record(store.get(key))
    except NotFoundError:
        return {}
