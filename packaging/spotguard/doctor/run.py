"""The doctor's visit: it runs every check in order, yields each finding at once, and removes its objects from the store.

The checks follow the course of a notice: its source, its window, the store, the store's rate, the size of the state.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from spotguard.agent.config.options import Options
from spotguard.agent.ipc.paths import SERVICE_SOCKET
from spotguard.hooks.checkpoint.format.keys import probe_key
from spotguard.providers.clock import Clock
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.url import scheme_of, shown

from . import disk_rate, throughput, verdict
from .checks import agent, cloud, credentials, disk, job, stage, start, store, window
from .checks import clock as clocks
from .cleanup import Leftovers
from .finding import Finding, FindingState, fails, parted, warning
from .rate_measurement import Measured, MeasureLimits
from .trial import findings, harness
from .trial.harness import TrialRequest

#: The run id of the probe's key if no run is named. A listing does not take it for a run, because a run has attempts.
_NO_RUN = "spotguard-doctor"


@dataclass(frozen=True, slots=True)
class Patient:
    """The machine, job and options that the doctor checks."""

    options: Options
    #: The run that was named; "" for any run that is here.
    run_id: str
    clock: Clock
    env: Mapping[str, str]
    uid: int
    #: The command that `run` would start; empty if none was given.
    command: Sequence[str] = ()
    #: Root of the file system that has the firmware's DMI files.
    root: Path = Path("/")
    #: Socket of the machine's service.
    service: Path = SERVICE_SOCKET
    pace: MeasureLimits = field(default_factory=MeasureLimits)
    #: The trial of the command, with `--trial`.
    trial: TrialRequest | None = None


def visit(who: Patient) -> Generator[Finding, None, None]:
    """Yield every finding, the verdict last.

    Raises:
        UsageError: an option cannot be used.
    """
    options, clock = who.options, who.clock
    sight = cloud.look(options, clock, who.root)
    ask = partial(agent.ask, options, who.env, who.uid, run_id=who.run_id, service=who.service)
    here = ask()
    yield from map(agent.instead, sight.findings) if here.sees else sight.findings
    yield from here.findings
    yield from start.look(options, who.command, lambda: ask().running, who.env, who.uid, clock)
    left = window.count_on(sight.cloud, options.window, sight.window, options.reserve, here.counted)
    yield left.finding
    if who.trial is not None:
        yield from _tried(who, who.trial, left, sight.cloud)
        return
    saving = job.savers(here.sessions)
    nbytes = job.nbytes(saving) if saving else None
    url = _url(options, saving)
    run_id = who.run_id or (str(saving[0]["run_id"]) if saving else _NO_RUN)
    measured, put_seconds = yield from _store(who, url, sight.cloud, run_id, nbytes or 0)
    if options.stage:
        yield from stage.look(Path(options.stage), run_id, nbytes or 0, clock)
    yield from job.look(here.sessions, url, who.run_id, here.others)
    own = job.own_seconds(saving)
    wrong = bool(job.misuse(saving))
    yield verdict.judge(left, nbytes, measured, put_seconds, options, sight.cloud, own, misused=wrong)


def _tried(who: Patient, request: TrialRequest, left: window.Window, cloud_name: str) -> Generator[Finding]:
    """Run the trial, and yield the findings about it and about a save of its state to the user's own store."""
    options, clock = who.options, who.clock
    # The whole trial is over before a finding is yielded: whoever closes this generator finds nothing of it.
    trial = harness.run(request, who.command, who.env, clock, staged=bool(options.stage))
    yield from findings.findings(trial)
    saving = findings.sessions(trial, who.run_id, options.store)
    nbytes = job.nbytes(saving) if saving else None
    measured, put_seconds = yield from _store(who, options.store, cloud_name, who.run_id, nbytes or 0)
    if options.stage:
        yield from stage.look(Path(options.stage), who.run_id, nbytes or 0, clock)
    if saving:
        yield from job.of_run(who.run_id, saving)
    waits = findings.waits(trial)
    if saving and cloud_name == "none" and options.window is None:
        fit = verdict.fit_of(left, nbytes, measured, put_seconds, waits)
        ways = verdict.ways(findings.shortest(fit, options), rounds=options.lossy_moments)
        yield findings.windows(fit, options, ways)
    wrong = bool(job.misuse(saving))
    yield verdict.judge(left, nbytes, measured, put_seconds, options, cloud_name, misused=wrong, waits=waits)


def _store(
    who: Patient, url: str, cloud_name: str, run_id: str, nbytes: int
) -> Generator[Finding, None, tuple[Measured | None, float]]:
    """Yield the findings about the store.

    Returns:
        The measured rate, or None if it could not be measured; and the seconds that a small put takes.
    """
    folder = scheme_of(url) == "file"
    dates = clocks.Dates(who.clock)
    try:
        opened = open_store(url)
    except UsageError as error:
        found, advice = parted(error)
        yield fails("store", found, advice, url=shown(url))
        return None, 0.0
    litter = Leftovers(opened, who.clock)
    measured, put_seconds = None, 0.0
    # Entered twice: the one signal that is heard may come at the very start of the first cleanup.
    with litter, litter:
        reached = store.reach(opened, who.clock, partial(dates.hear, "the store"))
        yield reached
        room = None
        if folder:
            room = yield from disk.look(url, cloud_name, nbytes, who.clock)
        answers = reached.state is FindingState.OK and (room is not None or not folder)
        if dates.ahead is None:
            dates.hear("the metadata service", cloud.dated(cloud_name, who.options, who.clock))
        if answers:
            yield credentials.look(opened)
        yield clocks.judge(dates, scheme_of(url), taken=reached.state is FindingState.OK)
        if answers:
            tried = store.rights(opened, run_id, litter, who.clock)
            yield from tried.findings
            put_seconds = tried.put_seconds
            if tried.puts and tried.removes:
                measured = _measure(who, opened, run_id, litter, room)
                yield throughput.told(measured, folder=folder)
            elif tried.puts:
                found = "not measured: what is put for it could not be removed"
                yield warning("rate", found, "allow the job to delete, and ask again", rate=None)
    yield from store.remains(litter)
    return measured, put_seconds


def _url(options: Options, saving: Sequence[job.Session]) -> str:
    """Return the store that was passed, else that of the job that is registered here, else the default."""
    if options.store_given or not saving:
        return options.store
    return str(max(saving, key=lambda each: int(each["bytes"]))["store"])


def _measure(who: Patient, opened: BlobStore, run_id: str, litter: Leftovers, room: int | None) -> Measured:
    """Measure the store's rate.

    Args:
        room: free bytes, if the store is a directory; None for a cloud's store.
    """

    def key() -> str:
        return litter.note(probe_key(run_id, f"{os.getpid()}-{secrets.token_hex(8)}"))

    if room is None:
        return throughput.Measurement(opened, key, litter, who.clock, who.pace).run()
    most = min(who.pace.most_on_disk, room // 10)
    return disk_rate.DiskMeasurement(opened, key, litter, who.clock, who.pace, most).run()
