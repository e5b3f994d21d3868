"""Evidence for the cause of a difference: facts about two runs, from their records. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .compare import Data, Difference, Unsteady, batches, is_tensor
from .record import BoundaryRecord, Entry, Record, Trained
from .stale import (
    Stale,
    aliases,
    averages,
    changed_before_forward,
    drawn_anew,
    frozen,
    late_layers,
    modes,
    registered,
    stale_variables,
    within,
)

#: Classes of the loaders that `Accelerator.prepare` returns.
_ACCELERATED = ("DataLoaderShard", "DataLoaderDispatcher")
_ROOT = re.compile(r"(self\.)?[^.\[]+")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All facts that a cause may rest on. A field without evidence is empty."""

    #: The first difference; None for a life that failed.
    first: Difference | None
    #: Whether two undisturbed runs differ, with no resume involved.
    undisturbed: bool = False
    #: Completed steps at which the resumed run began.
    begin: int = 0
    #: How the resumed run's batches relate to the undisturbed run's.
    data: Data = "unseen"
    #: The number of batches by which they are off.
    shift: int = 0
    #: Unregistered optimizers whose state or parameters were lost.
    strangers: tuple[Trained, ...] = ()
    #: Unregistered modules that differ after the restore, by the script's names.
    modules: tuple[str, ...] = ()
    #: Variables and modules that a resumed run makes of other random numbers.
    drawn_anew: tuple[str, ...] = ()
    #: Variables that name what a registered object held, and that the restore has given another value.
    aliases: tuple[str, ...] = ()
    #: Variables that hold copies or averages of the parameters.
    kept: tuple[Stale, ...] = ()
    #: A registered dict of the script; "" if there is none.
    notes: str = ""
    #: Optimizers whose step comes after the boundary that should close it.
    behind_boundary: tuple[str, ...] = ()
    #: Optimizers for which gradients are being gathered at the boundary.
    gathering: tuple[str, ...] = ()
    #: Registered names that differ right after the restore.
    unrestored: tuple[str, ...] = ()
    #: Registered names that change after guard.step(), before the next forward.
    late: tuple[str, ...] = ()
    #: Registered names that were restored, and that the script changed before its first forward.
    undone: tuple[str, ...] = ()
    #: Registered names that now refer to another object.
    rebound: tuple[str, ...] = ()
    #: Registered parameters that one of the runs freezes and the other one trains.
    frozen: tuple[str, ...] = ()
    #: Trained modules and parts of them that are in evaluation mode in one of the runs, and in training mode in the other one.
    modes: tuple[str, ...] = ()
    #: Variables that were not restored, the most telling first.
    stale: tuple[Stale, ...] = ()
    #: Number of loaders' iterators that were made before `restore`.
    early_iterators: int = 0
    #: Names of registered loaders.
    loaders: tuple[str, ...] = ()
    #: Variables that hold loaders of torch's that are not registered.
    plain_loaders: tuple[str, ...] = ()
    #: The places of registered loaders that a counter may begin at, with their values at the restore.
    places: Mapping[str, str] = field(default_factory=dict)
    #: Whether batches come from one of torch's loaders.
    fetched: bool = False
    #: Whether accelerate has prepared a loader.
    accelerated: bool = False
    #: Whether a loader has worker processes.
    workers: bool = False
    #: Whether workers stay from one pass to the next (`persistent_workers`).
    workers_stay: bool = False
    #: Generators that were restored and have another state at the first forward.
    moved: tuple[str, ...] = ()
    #: The cause that moved them: "iterator", "batch", "seed", "evaluation" or "code".
    moved_by: str = ""
    #: Generators that training draws from and whose state differs at each start.
    unseeded: tuple[str, ...] = ()
    #: Whether the seed was the process id.
    seeded_by_pid: bool = False
    #: Plain variables that differ from the start of each run on, or of the resumed run.
    unlike: tuple[str, ...] = ()
    #: Places where the script has started threads, as "train.py:12".
    threads: tuple[str, ...] = ()
    #: Files in the working directory that the life before wrote and this life read.
    own_files: tuple[str, ...] = ()
    #: The id of the run that the script restores from at every start.
    elsewhere: str = ""
    #: The stores and run ids that the script names, if they differ from start to start.
    names: tuple[str, ...] = ()
    #: Tensors of registered modules that were not there at the restore of an undisturbed run.
    late_layers: tuple[str, ...] = ()
    #: Why a resumed life failed.
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    """Facts about a life that no rank's record holds."""

    threads: tuple[str, ...] = ()
    own_files: tuple[str, ...] = ()
    failed: str = ""


def of_undisturbed(
    first: Record, second: Record, differing: Sequence[Difference], around: Around
) -> Evidence:
    """Return the evidence for why two undisturbed runs differ."""
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
        first=differing[0] if differing else None,
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
    """Yield generators that training draws from and whose state differs between the runs at the start and at the end."""
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
    plain: Record, other: Record, differing: Sequence[Difference], left_out: Unsteady, around: Around
) -> Evidence:
    """Return the evidence for why a resumed run differs from the undisturbed one."""
    begin = other.began or 0
    data, shift = batches(plain, other, begin)
    moved, moved_by = _generators(plain, other, begin, left_out)
    loaders = tuple(name for name, kind in plain.kinds.items() if "Loader" in kind)
    at_restore = [each for each in differing if each.restored]
    return Evidence(
        first=differing[0] if differing else None,
        begin=begin,
        data=data,
        shift=shift,
        strangers=_strangers(plain, other, begin),
        modules=_modules(plain, other, begin),
        drawn_anew=drawn_anew(plain, other, begin, left_out),
        unlike=drawn_anew(plain, other, begin, left_out, plainly=True),
        aliases=aliases(plain, other, begin),
        kept=averages(plain, differing),
        notes=next((name for name, kind in plain.kinds.items() if kind == "dict"), ""),
        behind_boundary=_behind_boundary(plain),
        gathering=_gathering(plain, begin, differing),
        unrestored=registered(at_restore, plain),
        late=changed_before_forward(plain, other, begin, late=True),
        undone=changed_before_forward(plain, other, begin, late=False),
        rebound=tuple(other.looks[other.last].rebound) if other.looks else (),
        frozen=frozen(plain, other, begin + 1),
        modes=modes(plain, other, begin + 1),
        stale=stale_variables(plain, other, begin, left_out),
        early_iterators=other.iterators,
        loaders=loaders,
        plain_loaders=_plain_loaders(plain),
        places=_places(loaders, plain.looks.get(begin)),
        fetched=any(look.has("batch") for look in plain.after(1)),
        accelerated=any(whose.startswith(_ACCELERATED) for whose in _loaders(plain)),
        workers=_has_workers(plain),
        workers_stay=_has_workers(plain, "that stay"),
        moved=moved,
        moved_by=moved_by,
        threads=around.threads,
        own_files=around.own_files,
        elsewhere=other.elsewhere,
        late_layers=late_layers(plain),
        failed=around.failed,
    )


# --- batches ---


def _loaders(record: Record) -> Iterator[str]:
    """Yield the class of each loader from which an iterator was made, and its workers."""
    for look in record.looks.values():
        yield from (entry.whose for entry in look.turn if entry.what == "iterator")


def _has_workers(record: Record, kind: str = "workers") -> bool:
    return any(kind in whose for whose in _loaders(record))


def _plain_loaders(plain: Record) -> tuple[str, ...]:
    objects = plain.looks[plain.last].objects.values() if plain.looks else ()
    named = (text.rpartition(": ")[0] for text in objects if text.endswith("DataLoader"))
    return tuple(name.rpartition(": ")[2] for name in named if " " not in name.rpartition(": ")[2])


def _places(loaders: Sequence[str], look: BoundaryRecord | None) -> dict[str, str]:
    found: dict[str, str] = {}
    state = look.items["state"] if look is not None else {}
    for name in loaders:
        found[f"{name}.position, as in enumerate({name}, {name}.position)"] = state.get(f"{name}.taken", "")
        found[f"{name}.epoch, as in range({name}.epoch, …)"] = state.get(f"{name}.epoch", "")
    return found


# --- optimizers and boundaries ---


def _behind_boundary(plain: Record) -> tuple[str, ...]:
    """Return optimizers whose step opens the next turn, behind the boundary that should close it.

    Such an optimizer does not step in turn 1. In turns 2 and 3 it steps before anything is differentiated, or turn 1 has
    trained nothing at all.
    """
    turns = [plain.looks[step].turn for step in sorted(plain.looks) if step >= 1][:3]
    if len(turns) < 3 or plain.began != 0:
        return ()
    first, later = turns[0], turns[1:]
    stepped = {entry.whose for entry in first if entry.what == "step"}
    usual = [entry.whose for entry in later[0] if entry.what == "step"]
    trained = any(entry.what in ("input", "loss") for entry in first)
    behind = []
    for name in dict.fromkeys(usual):
        if name in stepped:
            continue
        if (not trained and not stepped) or all(_steps_first(turn, name) for turn in later):
            behind.append(name)
    return tuple(behind)


def _steps_first(turn: Sequence[Entry], name: str) -> bool:
    for entry in turn:
        if entry.what == "step" and entry.whose == name:
            return True
        if entry.what == "loss":
            return False
    return False


def _gathering(plain: Record, begin: int, differing: Sequence[Difference]) -> tuple[str, ...]:
    """Return optimizers that did not step in the saved turn, though gradients for them were made.

    An optimizer is one that gathers if it steps in some turns, and at least a third have none of its steps. If another one steps in
    the saved turn, the first difference must be the work of this one's next step: that turn's losses are still equal.
    """
    turns, saved = list(plain.after(1)), plain.looks.get(begin)
    if saved is None or not saved.has("loss"):
        return ()
    steps = {name: [look.step for look in turns if name in _stepped(look)] for name in plain.optimizers}
    names = []
    for name, at in steps.items():
        rare = at and begin not in at and (len(turns) - len(at)) * 3 >= len(turns)
        after = next((step for step in at if step > begin), None)
        works = bool(differing) and differing[0].kind == "state" and differing[0].step == after
        if rare and (works or not saved.has("step")):
            names.append(name)
    return tuple(names)


def _stepped(look: BoundaryRecord) -> set[str]:
    return {entry.whose for entry in look.turn if entry.what == "step"}


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
    names = [name for name in still if name in lost or name not in here.items["modules"]]
    called = [text.rpartition(": ")[0] for text in plain.looks[plain.last].objects.values()]
    roots = (next((each for each in called if within(name, each)), _roots([name])[0]) for name in names)
    return tuple(dict.fromkeys(roots))


# --- generators ---


def _generators(plain: Record, other: Record, begin: int, left_out: Unsteady) -> tuple[tuple[str, ...], str]:
    """Return generators that were right after the restore and differ at the first forward, and the cause of the move."""
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
    lacks = len(there.values("evaluation")) < len(here.values("evaluation"))
    if by == "code" and lacks and _mover(here, name, saved.items["generators"][name]) == "evaluation":
        return names, "evaluation"
    return names, by


def _at_first_forward(look: BoundaryRecord) -> Mapping[str, str]:
    entry = next((each for each in look.turn if each.what == "input"), None)
    entry = entry or next((each for each in look.turn if each.what == "loss"), None)
    return {} if entry is None else entry.generators


def _mover(look: BoundaryRecord, name: str, state: str) -> str:
    """Return the kind of the first entry after which the generator's state differs; "code" for other kinds."""
    for entry in look.turn:
        if entry.generators.get(name) != state:
            return entry.what if entry.what in ("iterator", "batch", "evaluation") else "code"
    return "code"


# --- names ---


def _roots(names: Iterable[str]) -> tuple[str, ...]:
    """Return the variables that the names begin with: `ema` for `ema.module.0.weight`, and `self.ema` for a field."""
    return tuple(
        dict.fromkeys(match[0] for name in names if (match := _ROOT.match(name.rpartition(": ")[2])))
    )
