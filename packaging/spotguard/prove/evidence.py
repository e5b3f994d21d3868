"""What speaks for one cause or another of a difference: facts about two runs, from their records. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .compare import Data, Difference, Unsteady, batches, is_tensor
from .record import BoundaryRecord, Entry, Record, Trained
from .stale import Stale, drawn_anew, stale_variables, within

_ROOT = re.compile(r"(self\.)?[^.\[]+")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a cause may rest on. What does not speak is empty."""

    #: Of the first difference; None for a life that failed.
    first: Difference | None
    #: Two undisturbed runs differ, and no resume is involved.
    undisturbed: bool = False
    #: Completed steps at which the resumed run began.
    begin: int = 0
    data: Data = "unseen"
    shift: int = 0
    #: Optimizers that are not registered and whose state, or whose parameters, were lost.
    strangers: tuple[Trained, ...] = ()
    #: Modules that are not registered and came back otherwise, by the script's name.
    modules: tuple[str, ...] = ()
    #: Variables and modules that are made of other random numbers in a resumed run.
    drawn_anew: tuple[str, ...] = ()
    #: Copies or averages of the parameters, in variables.
    kept: tuple[str, ...] = ()
    #: Optimizers whose step comes after the boundary that should close it.
    behind_boundary: tuple[str, ...] = ()
    #: The boundary comes while gradients are being gathered.
    gathering: bool = False
    #: Registered, and differs right after the restore.
    unrestored: tuple[str, ...] = ()
    #: Registered, and changes after guard.step(), before the next forward.
    late: tuple[str, ...] = ()
    #: Registered, brought back, and changed by the script before its first forward.
    undone: tuple[str, ...] = ()
    #: Registered names that mean another object by now.
    rebound: tuple[str, ...] = ()
    #: Registered parameters that are frozen in one of the runs, and trained in the other.
    frozen: tuple[str, ...] = ()
    #: Variables, the most telling first.
    stale: tuple[Stale, ...] = ()
    #: Iterators of loaders that were made before `restore`, and registered loaders.
    early_iterators: int = 0
    loaders: tuple[str, ...] = ()
    #: Batches come from a loader of torch's.
    fetched: bool = False
    #: A loader has worker processes.
    workers: bool = False
    #: Generators that were brought back and stand elsewhere at the first forward; and what moved them: "iterator", "batch",
    #: "seed", "evaluation" or "code".
    moved: tuple[str, ...] = ()
    moved_by: str = ""
    #: Generators that begin differently at each start and are drawn from.
    unseeded: tuple[str, ...] = ()
    #: The seed was the process's own number.
    seeded_by_pid: bool = False
    #: Plain variables that differ from the start of each run.
    unlike: tuple[str, ...] = ()
    #: Threads that the script has started, as "train.py:12".
    threads: tuple[str, ...] = ()
    #: Files of the working folder that the life before had written and this one has read.
    own_files: tuple[str, ...] = ()
    #: The run that the script restores from at every start.
    elsewhere: str = ""
    #: The stores and run ids that the script names, where they are others at each start.
    names: tuple[str, ...] = ()
    #: Why a resumed life failed.
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    """What of a life is no record of a rank."""

    threads: tuple[str, ...] = ()
    own_files: tuple[str, ...] = ()
    failed: str = ""


def of_undisturbed(first: Record, second: Record, found: Sequence[Difference], around: Around) -> Evidence:
    """Why two undisturbed runs differ."""
    start = min(first.looks.keys() & second.looks.keys(), default=0)
    here, there = first.looks.get(start), second.looks.get(start)
    turn, other_turn = first.looks.get(start + 1), second.looks.get(start + 1)
    own: dict[str, tuple[str, str | None]] = {}
    for one, other in ((here, there), (turn, other_turn)):
        if one is not None and other is not None:
            for name, text in {**one.variables, **one.opened_variables}.items():
                if text.startswith("generator ") and name not in own:
                    own[name] = text, {**other.variables, **other.opened_variables}.get(name)
    return Evidence(
        first=found[0] if found else None,
        undisturbed=True,
        unseeded=tuple(_unseeded(first, second, start)),
        seeded_by_pid=first.seed != second.seed
        and abs(first.seed - first.pid) <= 1
        and abs(second.seed - second.pid) <= 1,
        stale=tuple(Stale(n, a, b) for n, (a, b) in own.items() if b is not None and a != b),
        unlike=tuple(_unlike(here, there)) or tuple(_unlike(turn, other_turn)),
        threads=around.threads,
        workers=_has_workers(first),
    )


def _unlike(one: BoundaryRecord | None, other: BoundaryRecord | None) -> Iterator[str]:
    if one is not None and other is not None:
        theirs = {**other.variables, **other.opened_variables}
        for name, text in {**one.variables, **one.opened_variables}.items():
            if theirs.get(name, text) != text and not is_tensor(text):
                yield name


def _unseeded(first: Record, second: Record, start: int) -> Iterator[str]:
    """Generators that stand elsewhere in each run, at the begin and at the end, and that training draws from."""
    last = min(first.last, second.last)
    ends = [(first.looks.get(step), second.looks.get(step)) for step in (start, last)]
    for name in first.looks[start].items["generators"] if start in first.looks else ():
        states = [
            (one.items["generators"].get(name), other.items["generators"].get(name))
            for one, other in ends
            if one is not None and other is not None
        ]
        drawn = len({look.items["generators"].get(name) for look in first.looks.values()}) > 1
        if drawn and all(one != other for one, other in states):
            yield name


def of_resumed(
    plain: Record, other: Record, found: Sequence[Difference], left_out: Unsteady, around: Around
) -> Evidence:
    """Why a resumed run differs from the undisturbed one."""
    begin = other.began or 0
    data, shift = batches(plain, other, begin)
    moved, moved_by = _generators(plain, other, begin, left_out)
    at_restore = [each for each in found if each.restored]
    return Evidence(
        first=found[0] if found else None,
        begin=begin,
        data=data,
        shift=shift,
        strangers=_strangers(plain, other, begin),
        modules=_modules(plain, other, begin),
        drawn_anew=drawn_anew(plain, other, begin, left_out),
        kept=_roots(each.name for each in found if each.kind == "kept"),
        behind_boundary=_behind_boundary(plain),
        gathering=_gathering(plain, begin),
        unrestored=_registered(at_restore, plain),
        late=_changed_before_forward(plain, other, begin, late=True),
        undone=_changed_before_forward(plain, other, begin, late=False),
        rebound=tuple(other.looks[other.last].rebound) if other.looks else (),
        frozen=_frozen(plain, other, begin + 1),
        stale=stale_variables(plain, other, begin, left_out),
        early_iterators=other.iterators,
        loaders=tuple(name for name, kind in plain.kinds.items() if "Loader" in kind),
        fetched=any(look.has("batch") for look in plain.after(1)),
        workers=_has_workers(plain),
        moved=moved,
        moved_by=moved_by,
        threads=around.threads,
        own_files=around.own_files,
        elsewhere=other.elsewhere,
        failed=around.failed,
    )


# --- batches ---


def _has_workers(record: Record) -> bool:
    return any("workers" in entry.whose for look in record.looks.values() for entry in look.turn)


# --- optimizers and boundaries ---


def _behind_boundary(plain: Record) -> tuple[str, ...]:
    """Optimizers that begin a turn with the step of the turn before.

    In turn 1 they do not step; in turn 2 and 3 they do, before anything is differentiated there, or turn 1 has trained
    nothing at all.
    """
    turns = [plain.looks[step].turn for step in sorted(plain.looks) if step >= 1][:3]
    if len(turns) < 3 or plain.began != 0:
        return ()
    first, later = turns[0], turns[1:]
    stepped = {entry.whose for entry in first if entry.what == "step"}
    usual = [entry.whose for entry in later[0] if entry.what == "step"]
    trained = any(entry.what in ("input", "loss") for entry in first)
    found = []
    for name in dict.fromkeys(usual):
        if name in stepped:
            continue
        if (not trained and not stepped) or all(_steps_first(turn, name) for turn in later):
            found.append(name)
    return tuple(found)


def _steps_first(turn: Sequence[Entry], name: str) -> bool:
    for entry in turn:
        if entry.what == "step" and entry.whose == name:
            return True
        if entry.what == "loss":
            return False
    return False


def _gathering(plain: Record, begin: int) -> bool:
    """Most turns differentiate without a step, and the one that was saved is such a one."""
    turns = list(plain.after(1))
    without = [look for look in turns if look.has("loss") and not look.has("step")]
    saved = plain.looks.get(begin)
    return (
        saved is not None
        and saved in without
        and len(without) * 3 >= len(turns)
        and len(without) < len(turns)
    )


def _strangers(plain: Record, other: Record, begin: int) -> tuple[Trained, ...]:
    here, there = plain.looks.get(begin), other.looks.get(begin)
    if here is None or there is None:
        return ()
    lost = [
        name for name, text in here.items["optimizers"].items() if there.items["optimizers"].get(name) != text
    ]
    orphans = {*here.items["modules"], *here.items["moved"]}
    return tuple(
        each
        for each in plain.optimizers.values()
        if not each.registered
        and (any(within(name, each.name) for name in lost) or any(name in orphans for name in each.trains))
    )


def _modules(plain: Record, other: Record, begin: int) -> tuple[str, ...]:
    here, there = plain.looks.get(begin), other.looks.get(begin)
    after, later = plain.looks.get(begin + 1), other.looks.get(begin + 1)
    if here is None or there is None or after is None or later is None:
        return ()
    begun = plain.looks[min(plain.looks)].items["modules"]
    lost = [
        name
        for name, text in here.items["modules"].items()
        if there.items["modules"].get(name, text) != text and begun.get(name) != text
    ]
    still = [n for n, text in after.items["modules"].items() if later.items["modules"].get(n, text) != text]
    return _roots(name for name in still if name in lost or name not in here.items["modules"])


# --- what is registered ---


def _registered(found: Iterable[Difference], plain: Record) -> tuple[str, ...]:
    """The registered names that these items belong to; generators by their own."""
    names: dict[str, None] = {}
    for each in found:
        if each.kind == "generators":
            names[f"generator {each.name}"] = None
        else:
            names[next((n for n in plain.kinds if within(each.name, n)), each.name)] = None
    return tuple(names)


def _frozen(plain: Record, other: Record, step: int) -> tuple[str, ...]:
    here, there = plain.looks.get(step), other.looks.get(step)
    return tuple(sorted(set(here.frozen) ^ set(there.frozen))) if here and there else ()


def _changed_before_forward(plain: Record, other: Record, begin: int, *, late: bool) -> tuple[str, ...]:
    """Registered state that differs at the first forward, though it was the same at the boundary.

    Args:
        late: what the undisturbed run has changed there and the resumed one has not; else the other way round. (What both
            have changed follows from something else.)
    """
    here, there = plain.looks.get(begin), other.looks.get(begin)
    after, later = plain.looks.get(begin + 1), other.looks.get(begin + 1)
    if here is None or there is None or after is None or later is None:
        return ()
    found = []
    for name, text in after.opened_state.items():
        saved, mine = here.items["state"].get(name, text), later.opened_state.get(name, text)
        if mine != text and there.items["state"].get(name, text) == saved and (text, mine)[late] == saved:
            found.append(Difference(begin, "state", name, text, mine))
    return _registered(found, plain)


# --- generators ---


def _generators(plain: Record, other: Record, begin: int, left_out: Unsteady) -> tuple[tuple[str, ...], str]:
    """Generators that stood as they should after the restore and do not at the first forward, and what has moved them."""
    here, there = plain.looks.get(begin + 1), other.looks.get(begin + 1)
    restored, saved = other.looks.get(begin), plain.looks.get(begin)
    if here is None or there is None or restored is None or saved is None:
        return (), ""
    mine, theirs = _at_first_forward(here), _at_first_forward(there)
    names = tuple(
        name
        for name, state in saved.items["generators"].items()
        if ("generators", name) not in left_out.items
        and restored.items["generators"].get(name) == state
        and mine.get(name) != theirs.get(name)
    )
    if not names:
        return (), ""
    name = names[0]
    by = _mover(there, name, restored.items["generators"][name])
    fresh = {plain.looks[step].items["generators"].get(name) for step in sorted(plain.looks)[:1]}
    first = plain.looks.get(1)
    if first is not None:
        fresh.add(_at_first_forward(first).get(name))
    if by == "code" and theirs.get(name) in fresh:
        return names, "seed"
    if by == "code" and _mover(here, name, saved.items["generators"][name]) == "evaluation":
        return names, "evaluation"
    return names, by


def _at_first_forward(look: BoundaryRecord) -> Mapping[str, str]:
    entry = next((each for each in look.turn if each.what == "input"), None)
    entry = entry or next((each for each in look.turn if each.what == "loss"), None)
    return {} if entry is None else entry.generators


def _mover(look: BoundaryRecord, name: str, state: str) -> str:
    """What the first entry is after which the generator stands elsewhere."""
    for entry in look.turn:
        if entry.generators.get(name) != state:
            return entry.what if entry.what in ("iterator", "batch", "evaluation") else "code"
    return "code"


# --- names ---


def _roots(names: Iterable[str]) -> tuple[str, ...]:
    """`ema.module.0.weight` and its kin as `ema`; of an object's field, the field: `self.ema`."""
    return tuple(
        dict.fromkeys(match[0] for name in names if (match := _ROOT.match(name.rpartition(": ")[2])))
    )
