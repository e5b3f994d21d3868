"""The findings about a trial: how it ended, memory, steps, the loader, the state, its saves, and every cloud's window."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotguard.agent.config.options import Options
from spotguard.agent.core.budget import USUAL_WINDOWS, Fit, reserve_of
from spotguard.providers.text import NAME, amount, clip, count

from ..checks.job import Session
from ..finding import Finding, fails, ok, parted, warning
from .harness import MeasuredTrial
from .measured import MeasuredRecord
from .memory import MemoryPeak, limit

#: Shares of the memory's limit, of a GPU's memory, and of a step's time that a trial warns of.
_TIGHT, _GPU_TIGHT, _WAITS = 0.85, 0.95, 0.2
#: The share of the time below which a phase is not shown.
_SHOWN = 0.01
_ALONE = "run the command by itself first"
_REGISTERS = (
    "call spotguard.register in each process that trains, or attach an adapter of spotguard.integrations"
)
_BOUNDARY = "call guard.step() after each optimizer step, and give a slow command longer with --timeout"
_NAMES = {"aws": "AWS", "gcp": "GCP", "azure": "Azure"}


def findings(trial: MeasuredTrial) -> Iterator[Finding]:
    """Yield the findings about a trial; only how it ended if it measured nothing."""
    yield _ended(trial)
    if not trial.steps:
        return
    ranks = trial.ranks
    yield _memory(trial.memory, *limit())
    yield from _devices(ranks)
    yield _steps(ranks)
    yield from _loader(ranks)
    yield _state(ranks)
    yield _save(ranks)


def sessions(trial: MeasuredTrial, run_id: str, store: str) -> list[Session]:
    """Return the ranks of a trial as training processes that are registered for the user's own run."""
    return [
        {
            "name": "",
            "store": store,
            "run_id": run_id,
            "rank": rank.rank,
            "world": rank.world,
            "bytes": rank.share,
            "save_seconds": None,
            "rate": None,
            **{name: rank.position[name] for name in ("step", "mode", "detail", "misuse")},
        }
        for rank in trial.ranks
        if rank.position and trial.steps
    ]


def waits(trial: MeasuredTrial) -> float:
    """Return the seconds that pass from a notice to the first byte of its save."""
    saved = [rank.saves["emergency"]["waited"] for rank in trial.ranks if _committed(rank)]
    # A save at a boundary may have to wait for the whole of a step.
    at_boundary = [rank.median or 0.0 for rank in trial.ranks if rank.position.get("mode") == "boundary"]
    return max([*saved, *at_boundary], default=0.0)


def windows(fit: Fit, options: Options, advice: Sequence[str]) -> Finding:
    """Return whether the save fits into the usual warning of each cloud, for a machine that none of them is found on.

    Args:
        fit: the save into this machine's own window.
        options: the options of the visit.
        advice: the ways to make the save fit into the shortest of the windows.
    """
    each = [(cloud, _fit_into(fit, seconds, options.reserve)) for cloud, seconds in USUAL_WINDOWS.items()]
    found = "; ".join(f"{_NAMES[cloud]} {one.window:g} s: {_slack(one)}" for cloud, one in each)
    facts = {cloud: {"fits": one.fits, "slack_seconds": _rounded(one.slack)} for cloud, one in each}
    if all(one.fits for _, one in each):
        return ok("windows", found, clouds=facts)
    return warning("windows", found, "; ".join(advice), clouds=facts)


def shortest(fit: Fit, options: Options) -> Fit:
    """Return the save into the shortest usual warning of any cloud."""
    return _fit_into(fit, min(USUAL_WINDOWS.values()), options.reserve)


def _fit_into(fit: Fit, seconds: float, reserve: float | None) -> Fit:
    return Fit(fit.nbytes, fit.rate, seconds, reserve_of(seconds, reserve), fit.commit, reserve)


def _slack(fit: Fit) -> str:
    if fit.slack is None:
        return "not known"
    return (
        f"fits, {fit.slack:.1f} s to spare"
        if fit.slack >= 0
        else f"does not fit, {-fit.slack:.1f} s are missing"
    )


# --- how the trial ended ---


def _ended(trial: MeasuredTrial) -> Finding:
    life, ranks, asked = trial.life, trial.ranks, trial.request.steps
    facts: dict[str, Any] = {"steps": trial.steps, "asked_steps": asked, "ranks": len(ranks)}
    if life is None:
        found, advice = parted(trial.error) if trial.error is not None else ("not run", "")
        return fails("trial", f"not run: {found}", advice, **facts, seconds=None, exit_code=None)
    facts |= {"seconds": round(life.seconds, 1), "exit_code": life.returncode}
    if not ranks:
        return _unregistered(trial, facts)
    if not trial.steps:
        return _without_boundary(trial, facts)
    found = f"{count(trial.steps, 'step')} of `{clip(' '.join(shlex.join(trial.command).split()), NAME)}` in {life.seconds:.1f} s"
    if life.failed:
        return fails(
            "trial",
            f"it failed after step {trial.steps}: {life.failed}",
            f"{_ALONE} ({life.output})",
            **facts,
        )
    if life.hung:
        what = "it did not end after its save" if all(map(_committed, ranks)) else "it hung"
        return warning(
            "trial", f"{found}; {what}: {_hang(life.hung)}", f"see where it stands ({life.output})", **facts
        )
    if trial.steps < asked:
        late = any(record.acted for record in ranks)
        why = (
            f"the limit of {trial.request.limit:g} s"
            if late
            else f"the command ended by itself before step {asked}"
        )
        advice = (
            "a longer --timeout, or fewer --steps" if late else "give it more to train, or pass fewer --steps"
        )
        return warning("trial", f"{found}; {why}", advice, **facts)
    return ok("trial", found, **facts)


def _unregistered(trial: MeasuredTrial, facts: Mapping[str, Any]) -> Finding:
    assert trial.life is not None
    life = trial.life
    if life.hung:
        found = f"it {_hang(life.hung)}"
        return fails("trial", found, f"{_REGISTERS}; give a slow start longer with --timeout", **facts)
    if life.failed:
        return fails(
            "trial",
            f"it failed before spotguard.register: {life.failed}",
            f"{_ALONE} ({life.output})",
            **facts,
        )
    _, attaches, why = life.last_words.partition("nothing was attached: ")
    if attaches:  # the last line of a Python below --attach
        return fails("trial", f"it ended, and --attach has attached nothing: {why}", _REGISTERS, **facts)
    return fails("trial", "it ended and never called spotguard.register", _REGISTERS, **facts)


def _without_boundary(trial: MeasuredTrial, facts: Mapping[str, Any]) -> Finding:
    assert trial.life is not None
    life, ranks = trial.life, trial.ranks
    if never := max(rank.never for rank in ranks):
        misuse = next((rank.position["misuse"] for rank in ranks if rank.position.get("misuse")), "")
        _, _, advice = misuse.partition("; ")
        found = f"no boundary: {count(never, 'optimizer step')}, and guard.step() was not called"
        return fails("trial", found, advice or _BOUNDARY, **facts)
    if life.failed:
        return fails(
            "trial",
            f"it failed before its first boundary: {life.failed}",
            f"{_ALONE} ({life.output})",
            **facts,
        )
    if life.hung:
        return fails("trial", f"no boundary: {_hang(life.hung)}", _BOUNDARY, **facts)
    return fails("trial", "it ended without a boundary: guard.step() was not called", _BOUNDARY, **facts)


def _hang(hung: str) -> str:
    """Return the harness's words about a hang without the run's name and the advice, which are about `prove`."""
    return hung.partition("; ")[0].partition("' ")[2]


# --- memory ---


def _memory(peak: MemoryPeak, most: int, whose: str) -> Finding:
    facts: dict[str, Any] = {
        "peak_bytes": peak.nbytes,
        "kind": peak.kind,
        "processes": peak.processes,
        "limit_bytes": most,
        "limit_of": whose,
    }
    shared = "each shared page once" if peak.kind == "PSS" else "shared pages in each process"
    processes = f"{peak.processes} process" + ("" if peak.processes == 1 else "es")
    of = "the limit of this cgroup" if whose == "cgroup" else "this machine's memory"
    found = (
        f"host: {amount(peak.nbytes)} at most in {processes} ({peak.kind}: {shared}), of {amount(most)}, {of}"
    )
    if peak.nbytes > _TIGHT * most:
        advice = "the kernel kills what needs more: fewer loader workers, a smaller prefetch_factor, or more memory"
        return warning("memory", found, advice, **facts)
    return ok("memory", found, **facts)


def _devices(ranks: Sequence[MeasuredRecord]) -> Iterator[Finding]:
    devices = [{"rank": rank.rank, **device} for rank in ranks for device in rank.devices]
    if not devices:
        yield ok("device", "no GPU: the command used none", devices=[])
        return
    fullest = max(devices, key=lambda each: each["reserved"] / each["total"])
    found = (
        f"{fullest['name']}: {amount(fullest['allocated'])} allocated at most, {amount(fullest['reserved'])} with torch's "
        f"cache, of {amount(fullest['total'])}"
    )
    if len(devices) > 1:
        found += f" (rank {fullest['rank']}, the fullest of {len(devices)})"
    if fullest["reserved"] > _GPU_TIGHT * fullest["total"]:
        advice = (
            "a longer sequence or a larger batch would not fit: a smaller batch, or activation checkpointing"
        )
        yield warning("device", found, advice, devices=devices)
    else:
        yield ok("device", found, devices=devices)


# --- time ---


def _steps(ranks: Sequence[MeasuredRecord]) -> Finding:
    slowest = max(ranks, key=lambda rank: rank.median or 0.0)
    first = max(rank.steps[0].seconds for rank in ranks)
    phases = {phase: round(share, 3) for phase, share in slowest.phases().items() if share >= _SHOWN}
    facts: dict[str, Any] = {
        "first_seconds": _rounded(first),
        "median_seconds": None,
        "shortest_seconds": None,
    }
    facts |= {"longest_seconds": None, "phases": phases}
    if slowest.median is None:
        return ok("step", f"the first took {_seconds(first)}, and there was no other", **facts)
    shortest, longest = min(slowest.seconds), max(slowest.seconds)
    facts |= {"median_seconds": _rounded(slowest.median)}
    facts |= {"shortest_seconds": _rounded(shortest), "longest_seconds": _rounded(longest)}
    found = f"{_seconds(first)} the first, then {_seconds(slowest.median)} (median; {_seconds(shortest)} to {_seconds(longest)})"
    if phases:
        found += f"; {', '.join(f'{phase} {share:.0%}' for phase, share in phases.items())}"
    return ok("step", found, **facts)


def _loader(ranks: Sequence[MeasuredRecord]) -> Iterator[Finding]:
    rank = max(ranks, key=lambda rank: rank.data_share)
    seconds = sum(rank.seconds)
    batches, samples = (
        sum(getattr(step, name) for step in rank.steps[1:]) for name in ("batches", "samples")
    )
    if not batches or not seconds:
        yield ok("loader", "no batch came from torch's DataLoader", share=None, batches_per_second=None)
        return
    workers = max(rank.loaders.values(), default=0)
    facts: dict[str, Any] = {
        "share": round(rank.data_share, 3),
        "batches_per_second": round(batches / seconds, 2),
        "samples_per_second": round(samples / seconds, 1) if samples else None,
        "workers": workers,
    }
    rate = f"{batches / seconds:.1f} batches a second" + (
        f", {samples / seconds:.0f} samples" if samples else ""
    )
    found = (
        f"{rate}, with {count(workers, 'worker')}; training waits for it {rank.data_share:.0%} of the time"
    )
    if rank.data_share < _WAITS:
        yield ok("loader", found, **facts)
        return
    cores = len(os.sched_getaffinity(0))
    some = max(1, cores // len(ranks))
    if workers == 0:
        advice = f"load beside training: DataLoader(num_workers={some})"
    elif workers < some:
        advice = f"more workers: {some} for each rank is what {count(cores, 'core')} give; pin_memory=True with a GPU"
    else:
        advice = f"{count(cores, 'core')} give no more workers: cheaper transforms, or data that is decoded and near"
    yield warning("loader", found, advice, **facts)


# --- state and saves ---


def _state(ranks: Sequence[MeasuredRecord]) -> Finding:
    kinds = {name: kind for rank in ranks for name, kind in rank.kinds.items()}
    shares = {rank.rank: rank.share for rank in ranks}
    facts = {"registered": kinds, "bytes": sum(shares.values()), "bytes_by_rank": shares}
    found = f"{', '.join(f'{name} ({kind})' for name, kind in kinds.items())}: {amount(sum(shares.values()))}"
    if len(shares) > 1:
        found += (
            f", of which ranks write {amount(min(shares.values()))} to {amount(max(shares.values()))} each"
        )
    return ok("state", found, "what else a resumed run needs, `spotguard prove` finds", **facts)


def _save(ranks: Sequence[MeasuredRecord]) -> Finding:
    background = [rank.saves["background"]["blocked"] for rank in ranks if "background" in rank.saves]
    blocked = max(background, default=None)
    facts: dict[str, Any] = {"bytes": None, "seconds": None, "waited_seconds": None, "rate": None}
    facts |= {"background_blocked_seconds": _rounded(blocked)}
    if full := next((rank.full for rank in ranks if rank.full), None):
        found = f"not measured: two checkpoints need {amount(full['needed'])} of the trial's disk, which has {amount(full['free'])}"
        return warning("save", found, "name a directory with more room: --folder DIR", **facts)
    if not all(map(_committed, ranks)):
        why = next((rank.saves["emergency"]["why"] for rank in ranks if "emergency" in rank.saves), "")
        return warning(
            "save", f"not measured{f': {why}' if why else ': the command ended first'}", "", **facts
        )
    saves = [rank.saves["emergency"] for rank in ranks]
    nbytes = sum(int(each["bytes"]) for each in saves)
    seconds, waited = max(each["seconds"] for each in saves), max(each["waited"] for each in saves)
    facts |= {"bytes": nbytes, "seconds": _rounded(seconds + waited), "waited_seconds": _rounded(waited)}
    facts |= {"rate": round(nbytes / seconds, 1) if seconds else None}
    found = (
        f"{amount(nbytes)} committed {seconds + waited:.2f} s after the notice, in the trial's own directory; "
        f"{waited:.2f} s of it before the first byte"
    )
    if blocked is not None:
        found += f"; a background checkpoint held training for {blocked:.3f} s"
    less = next((each for each in saves if each["level"] != "full"), None)
    if less is not None:
        return warning("save", f"{found}; level {less['level']}: {less['why']}", "", **facts)
    return ok("save", found, **facts)


def _committed(rank: MeasuredRecord) -> bool:
    return bool(rank.saves.get("emergency", {}).get("bytes"))


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
