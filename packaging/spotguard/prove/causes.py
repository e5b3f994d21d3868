"""Likely causes of a difference, and their remedies: a table, evaluated from top to bottom. Pure, and without torch.

Each row reads the facts and returns the names for its text, or None. The first row that returns names is the likely
cause. Later rows that return names are reported after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from . import wording
from .evidence import Evidence
from .wording import Found


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause, and its remedy."""

    #: The cause's name for programs.
    id: str
    #: The cause in words.
    text: str
    #: The remedy in words.
    mend: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: evidence, cause and remedy."""

    id: str
    evidence: Callable[[Evidence], Found]
    text: str
    mend: str
    #: Whether this cause also explains all that the rows below may find; then they are not evaluated.
    alone: bool = False


def causes(facts: Evidence) -> list[Cause]:
    """Return the causes that the facts support, the likeliest first."""
    return [*_answers(_UNDISTURBED if facts.undisturbed else _RESUMED, facts)]


def _answers(rows: Sequence[Row], facts: Evidence) -> Iterator[Cause]:
    for row in rows:
        if (names := row.evidence(facts)) is not None:
            yield Cause(row.id, row.text.format(**names), row.mend.format(**names))
            if row.alone:
                return


_UNDISTURBED = (
    Row(
        "unseeded",
        wording.unseeded,
        "generator {names} begins differently at each start: it is seeded {by}, or not at all",
        "seed with a number that is the same at every start, before anything is drawn: torch.manual_seed(0), random.seed(0), "
        "numpy.random.seed(0)",
        alone=True,
    ),
    Row(
        "own-generator",
        wording.own_generators,
        "{names} begins differently at each start: it is seeded by the process's number, the time or the system's entropy",
        "seed it with a number that is the same at every start, and register it",
        alone=True,
    ),
    Row(
        "thread",
        wording.named(lambda facts: facts.threads),
        "a thread that is started at {names} runs beside training, and what it does comes at another time in each run",
        "take what it gives in a fixed order, or draw and compute in the training thread",
    ),
    Row(
        "workers",
        wording.holds(lambda facts: facts.workers and wording.differs_first_in("input")(facts)),
        "the loader's worker processes give other samples in each run",
        "give the loader a generator with a fixed seed, and let workers draw from the one torch seeds for them",
    ),
    Row(
        "order",
        wording.unlike("input"),
        "the batches differ from the first one on, and no generator does: samples come in the order of a set, of a hash of "
        "text, of a folder's listing, or by the time or the system's entropy{variables}",
        "sort what is listed, as in sorted(…), and draw from a seeded generator, as in random.Random(0)",
    ),
    Row(
        "operation",
        wording.unlike("loss", "state", "modules", "optimizers", "moved", "kept"),
        "the same batches and the same random numbers give other bits: an operation that is not deterministic, memory that is "
        "read before it is written, or a number from outside (the time, a file, the network){variables}",
        "{instead}torch.use_deterministic_algorithms(True) names the operation, if it is one of torch's",
    ),
)

_RESUMED = (
    Row(
        "late-layer",
        wording.named(lambda facts: facts.late_layers if facts.failed else ()),
        "{names} is made after register(), and a new start that restores is without it",
        "make it before register(), at every start, and use it from the number of the step on",
        alone=True,
    ),
    Row(
        "failed",
        lambda facts: {"why": facts.failed} if facts.failed else None,
        "the resumed command failed: {why}",
        "start it twice with one store, and repair what the second start reports",
        alone=True,
    ),
    Row(
        "another-run",
        lambda facts: {"run": facts.elsewhere} if facts.elsewhere else None,
        "restore(run_id={run!r}) begins from that run at every start, also when this run has checkpoints of its own",
        "ask for its own first: guard.restore() or guard.restore(run_id={run!r})",
        alone=True,
    ),
    Row(
        "another-name",
        lambda facts: (
            {"names": " and ".join(f"{each!r}" for each in facts.names[:2])} if facts.names else None
        ),
        "register names another store or run id at each start, {names}: no start would find what the one before it has saved",
        "leave both out, as `spotguard run` gives them, or name what stays the same",
        alone=True,
    ),
    Row(
        "step-before-optimizer",
        wording.behind_boundary,
        "guard.step() stands before {names}",
        "call guard.step() at the end of the turn, after the last optimizer.step() and scheduler.step()",
        alone=True,
    ),
    Row(
        "gathering",
        wording.named(lambda facts: facts.gathering),
        "guard.step() comes while gradients are being gathered for {names}, and gradients are not saved",
        "call guard.step() only where the optimizer has stepped, behind its step() and zero_grad(); of several, where each that "
        "gathers has",
        alone=True,
    ),
    Row(
        "optimizer",
        wording.strangers,
        "{said}",
        "register it: register(…, {arguments})",
    ),
    Row(
        "module",
        wording.named(lambda facts: facts.modules),
        "module {names} changes during training and is not registered",
        "register it: register(…, {arguments})",
    ),
    Row(
        "rebound",
        wording.named(lambda facts: facts.rebound),
        "{names} means another object than the one that was registered",
        "change the registered object in place, as in {first}.update(…), or register the new one",
    ),
    Row(
        "frozen",
        wording.named(lambda facts: facts.frozen),
        "requires_grad of {names} differs from an uninterrupted run: no checkpoint holds it",
        "set requires_grad from the number of the step, in each turn or once after restore()",
    ),
    Row(
        "mode",
        wording.named(wording.modes),
        "{names} is in another mode (train or eval) than in an uninterrupted run: no checkpoint holds it",
        "set it in each turn, from the number of the step and before the first forward: {first}.train(…)",
    ),
    Row(
        "not-put-back",
        wording.named(lambda facts: facts.unrestored),
        "{names} does not come back: after restore() it is not what it was at the boundary",
        "have its load_state_dict() put back all that state_dict() gives, into the object that training uses",
    ),
    Row(
        "after-boundary",
        wording.named(lambda facts: facts.late),
        "{names} changes between guard.step() and the next forward, and a resumed run does not repeat that",
        "call guard.step() after it, at the end of the turn",
    ),
    Row(
        "changed-after-restore",
        wording.named(lambda facts: facts.undone),
        "{names} is brought back by restore() and changed by the script before the first step",
        "set it up before restore(), and leave it alone after it; what the end of an epoch changes is to be changed once, so keep that "
        "epoch's number beside it and test it",
    ),
    Row(
        "iterator-before-restore",
        wording.holds(
            lambda facts: facts.data == "anew" and facts.early_iterators > 0 and bool(facts.loaders)
        ),
        "the loader's iterator was made before restore(), so the position that is restored does not reach it",
        "make the iterator after restore(), from the registered loader: it draws from torch's generator as well",
    ),
    Row(
        "own-file",
        wording.named(lambda facts: facts.own_files if facts.data == "ahead" else ()),
        "the resumed run reads {names}, which the run before it has written: it may be of another step than the checkpoint",
        "keep its content in a registered dict instead",
        alone=True,
    ),
    Row(
        "prefetch",
        wording.ahead,
        "{count} fetched before the boundary: the loader is saved ahead of the step, and a resumed run leaves out what was fetched",
        "fetch a batch after guard.step(), in the turn that trains on it",
        alone=True,
    ),
    Row(
        "seeded-after-restore",
        wording.named(lambda facts: facts.moved if facts.moved_by == "seed" else ()),
        "generator {names} is seeded anew after restore()",
        "seed before restore(), which then puts the saved state back",
        alone=True,
    ),
    Row(
        "environment",
        wording.environments,
        "environment {names} begins anew after a restore: neither its state nor its generator is registered",
        "register an object that gives its state and takes it back, as in the recipe for reinforcement learning",
    ),
    Row(
        "drawn-anew",
        wording.named(lambda facts: facts.drawn_anew),
        "{names} is made of random numbers that nothing seeds, and so of others in a resumed run",
        "seed before it is made, with a number that is the same at every start: torch.manual_seed(0); or register it",
    ),
    Row(
        "loader",
        wording.wrap(wording.holds(wording.unwrapped)),
        "the loader's batches begin anew after a restore: nothing that is registered knows how far they were",
        "{wrap}; or draw each batch from the number of its step",
    ),
    Row(
        "generator",
        wording.generators,
        "generator {names} is not registered, and begins anew after a restore",
        "register it in a dict: register(…, {arguments})",
    ),
    Row(
        "workers-stay",
        wording.holds(wording.left_to_workers),
        "the loader's workers stay from pass to pass, and what they have drawn or changed is lost with them",
        "leave persistent_workers off, as in DataLoader(…, persistent_workers=False): then each pass begins with new workers, from "
        "the same random numbers",
    ),
    Row(
        "kept",
        wording.averages,
        "{names} holds tensors in the shapes of the parameters, changes during training, and is not registered",
        "{keep}",
    ),
    Row(
        "left-out",
        wording.left_out,
        "{said}: the state that {owners} gives out is without it",
        "have state_dict() give it and load_state_dict() put it back; in a module: {module}",
    ),
    Row(
        "object",
        wording.objects,
        "{said} and is not registered",
        "register it: register(…, {arguments})",
    ),
    Row(
        "variable",
        wording.variables,
        "{said}, and nothing that is registered holds it",
        "{begin}{keep}",
    ),
    Row(
        "batches",
        wording.holds(
            lambda facts: (
                not facts.fetched
                and all(each.is_length or each.is_iterator for each in facts.stale)
                and wording.off(facts)
            )
        ),
        "the batches begin anew after a restore: nothing that is registered knows how far they were",
        "draw each batch from the number of its step, or register what yields them",
    ),
    Row(
        "evaluation",
        wording.holds(lambda facts: facts.moved_by == "evaluation"),
        "an evaluation after guard.step() draws random numbers, and a resumed run does not repeat it",
        "evaluate before guard.step(), or at the begin of the next turn by the step's number",
        alone=True,
    ),
    Row(
        "iterator-draws",
        wording.wrap(
            wording.named(
                lambda facts: (
                    facts.moved if facts.moved_by == "iterator" and not wording.unwrapped(facts) else ()
                )
            )
        ),
        "the loader's iterator draws from generator {names}, at another state after a restore than in an uninterrupted run",
        "{wrap}",
    ),
    Row(
        "drawn-before-loop",
        wording.named(lambda facts: facts.moved if facts.moved_by in ("batch", "code") else ()),
        "generator {names} is drawn from between restore() and the first step",
        "draw before restore(), which then puts the saved state back",
    ),
    Row(
        "workers",
        wording.holds(
            lambda facts: (
                facts.workers
                and wording.differs_first_in("input")(facts)
                and not (wording.unwrapped(facts) or wording.left_to_workers(facts))
            )
        ),
        "the loader's worker processes draw other random numbers after a restart",
        "wrap the loader in spotguard.ResumableLoader: then each pass gives its workers the same random numbers",
    ),
    Row(
        "own-file",
        wording.named(lambda facts: facts.own_files),
        "the resumed run reads {names}, which the run before it has written: it may be of another step than the checkpoint",
        "keep its content in a registered dict instead",
    ),
    Row(
        "thread",
        wording.named(lambda facts: facts.threads),
        "a thread that is started at {names} runs beside training, and what it has done at a boundary is not saved",
        "take what it gives in a fixed order, or draw and compute in the training thread",
    ),
    Row(
        "plain",
        wording.named(lambda facts: facts.unlike),
        "{names} has another value in a resumed run: a random number that nothing seeds, a time, or what lies in a folder",
        "if training depends on it, compute it from the number of the step, or register it",
    ),
    Row(
        "alias",
        wording.named(lambda facts: facts.aliases),
        "{names} names a tensor that was in a registered object, and restore() gives it that object's newest value or leaves it out",
        "if training reads it, read the registered object's own instead, or register a copy",
    ),
)
