"""From two records to the likely cause, for what programs of `programs/` have written down; without torch."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spotguard.prove import compare, evidence
from spotguard.prove.causes import _RESUMED, _UNDISTURBED, Cause, causes
from spotguard.prove.evidence import Around, Evidence
from spotguard.prove.record import BoundaryRecord, Entry, Record, Trained
from spotguard.prove.stale import Stale
from tests.prove.recorded import RECORDS, boundary, record, recorded

#: Of each program: its cause, and words of the cause and of its mend.
PLANTS = {
    name: row
    for name, *row in (
        line.split(" | ")
        for line in """
anneal | changed-after-restore | `progress.rate` is brought back | keep that epoch's number beside it
another_name | another-name | another store or run id at each start | leave both out
another_run | another-run | begins from that run at every start | guard.restore() or guard.restore(run_id='base')
best | variable | `patience.bad` | register(…, patience=vars(patience))
buffer | variable | `len(agent.seen)` is 16 .* and 0 after | def state_dict(self): return dict(seen=self.seen)
carried | variable | `hidden` in main() stands as at the start | progress = {'hidden': hidden}
changed_after | changed-after-restore | `model` is brought back | set it up before restore()
clock | operation | other bits: .* they differ in `begun` | use_deterministic_algorithms
closure | variable | `rate's taken` is 4 .* and 0 after | begin `rate's taken` at what restore() returns
counter | variable | `self.seen` in train() is 16 .* and 0 after | def state_dict(self): return dict(seen=self.seen)
cycle | batches | the batches begin anew | from the number of its step
dataset_generator | loader | the loader's batches begin anew | loader = spotguard.ResumableLoader(loader)
ema | module | module `averaged` changes | register(…, averaged=averaged)
ema_by_hand | kept | `shadow` holds tensors in the shapes | progress = {'shadow': shadow}; register it: register(…, progress=progress)
endless | loader | the loader's batches begin anew | loader = spotguard.ResumableLoader(loader)
evaluation | evaluation | an evaluation after guard.step() | evaluate before guard.step()
frozen | frozen | requires_grad of `model.0.bias`, `model.0.weight` differs | from the number of the step
gathering | gathering | while gradients are being gathered | only where the optimizer has stepped
generator_function | variable | `source's at` in main() is 16 .* and 0 after | progress = {'at': 0}
hash_order | order | the order of a set, .* differ in `order` | sort what is listed
in_a_dict | module | module `nets['teacher']` changes | register(…, teacher=nets['teacher'])
iterator | iterator-before-restore | iterator was made before restore() | draws from torch's generator
late_layer | late-layer | `model.2.bias`, `model.2.weight` is made after register() | make it before register()
left_out | left-out | `sampler.at` is 16 .* without it | have state_dict() give it
meters | variable | `meters['left'].count` is 4 .* and 0 after | register(…, left=vars(meters['left']), right=vars(meters['right']))
mode | module | module `average` changes | register(…, average=average)
module | module | module `centre` changes | register(…, centre=centre)
momentum | variable | `self.momentum[0]` in train() stands as at the start | register(…,
next_order | loader | the loader's batches begin anew | loader = spotguard.ResumableLoader(loader)
non_persistent | left-out | `model.scale` is .*: the state that `model` gives out | self.register_buffer('scale', …) without persistent=False
optimizer | optimizer | optimizer `ob` (AdamW) trains `b.weight`, `b.bias` and is not | register(…, ob=ob)
own_file | own-file | the resumed run reads `place.txt` | registered dict
own_generator | generator | generator `draws` is not registered | register(…, generators={'draws': draws})
part_mode | mode | `model.get_submodule('1')` is in another mode | model.get_submodule('1').train(…)
pid | unseeded | generator `torch` begins differently .* by the process's number, or | torch.manual_seed(0)
plain_loader | iterator-draws | the loader's iterator draws from generator `torch` | ResumableLoader
position | variable | `number` is 4 .* and 0 after | enumerate(loader, loader.position)
prefetch | prefetch | a batch is fetched before the boundary | fetch a batch after guard.step()
rebound | rebound | `notes` means another object | notes.update
replay | variable | `place` stands as at the start; `len(memory)` is 4 | progress = {'place': place, 'memory': memory}
restore_ignored | variable | `step` is 4 .* and 0 after | begin `step` at what restore() returns
rollout | generator | generator `world.rng` is not registered | register(…, generators={'rng': world.rng})
scaler | object | `scaler` (GradScaler) .* is not registered | register(…, scaler=scaler)
scheduler | object | `scheduler` (CosineAnnealingLR) has last_epoch 4 | register(…, scheduler=scheduler)
second_loader | iterator-draws | the loader's iterator draws from generator `torch` | unlabeled = spotguard.ResumableLoader(unlabeled)
seeded_again | seeded-after-restore | generator `torch` is seeded anew | seed before restore()
step_between | step-before-optimizer | guard.step() stands before ob.step() | at the end of the turn
step_early | after-boundary | `scheduler`.* between guard.step() and the next | after it, at the end
step_first | step-before-optimizer | guard.step() stands before optimizer.step() | at the end of the turn
tasks | variable | `tasks of` stands as at the start | for _ in range(guard.restore()): next(tasks)
thread | thread | a thread that is started at `train.py: | in a fixed order
two_optimizers | gathering | gradients are being gathered for `slow` | of several, where each that gathers has
unseeded | drawn-anew | `projection` is made of random numbers | seed before it is made
workers_stay | workers-stay | the loader's workers stay from pass to pass | persistent_workers=False
wrapper | left-out | `ahead.slow | have state_dict() give it
""".strip().split("\n")
    )
}


def judged(name: str) -> tuple[list[compare.Difference], list[Cause]]:
    """As `proof` does, of one rank."""
    lives = recorded(name)
    first, second = lives["plain-1"][0], lives["plain-2"][0]
    before, after = lives["preempted"][0], lives["preempted"][-1]
    left_out = compare.unsteady(first.record, second.record)
    around = Around(threads=tuple(first.files.threads))
    if found := compare.differences(first.record, second.record, left_out):
        return found, causes(evidence.of_undisturbed(first.record, second.record, found, around))
    undisturbed = first.record.as_begun(after.record)
    found = compare.differences(undisturbed, after.record, left_out)
    own = {path.rpartition("/work/")[2] for path in after.files.reads() & before.files.writes()}
    known = Around(around.threads, tuple(own), after.failed)
    facts = evidence.of_resumed(undisturbed, after.record, found, left_out, known)
    said = {first.record.said, second.record.said, before.record.said, after.record.said}
    if len(said) > 1 and not found:
        facts = Evidence(first=None, names=tuple(sorted(said)))
    differs = found or after.failed or facts.elsewhere or facts.names
    return found, causes(facts) if differs else []


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_is_found_with_its_cause(name: str) -> None:
    found, told = judged(f"plant_{name}")
    id, text, mend = PLANTS[name]
    assert told, f"no cause; differs in {found[:3]}"
    assert told[0].id == id, [(each.id, each.text) for each in told]
    assert re.search(re.escape(text).replace(r"\.\*", ".*"), told[0].text), told[0].text
    assert mend in told[0].mend


@pytest.mark.parametrize("path", sorted(RECORDS.glob("exact_*.json.gz")), ids=lambda path: path.name)
def test_an_exact_script_raises_no_alarm(path) -> None:  # type: ignore[no-untyped-def]
    assert judged(path.name.removesuffix(".json.gz")) == ([], [])


def test_every_program_has_its_record() -> None:
    programs = {path.stem for path in RECORDS.parent.joinpath("programs").glob("*.py")}
    assert {path.name.removesuffix(".json.gz") for path in RECORDS.glob("*.gz")} == {
        name for name in programs if not name.endswith("ranks")
    }
    assert {f"plant_{name}" for name in PLANTS} == {
        name for name in programs if name.startswith("plant_") and name != "plant_ranks"
    }


#: Rows that no program shows.
ROWS = [
    ("failed", Evidence(first=None, failed="exit code 1: KeyError: 'step'"), "KeyError: 'step'"),
    (
        "late-layer",
        Evidence(first=None, failed="exit code 1", late_layers=("model.3.bias", "model.3.weight")),
        "`model.3.bias`, `model.3.weight` is made after register()",
    ),
    ("not-put-back", Evidence(first=None, unrestored=("draws",)), "`draws` does not come back"),
    ("loader", Evidence(first=None, fetched=True, data="anew"), "the loader's batches begin anew"),
    ("batches", Evidence(first=None, data="behind"), "the batches begin anew"),
    ("plain", Evidence(first=None, unlike=("run_num",)), "`run_num` has another value in a resumed run"),
    (
        "environment",
        Evidence(first=None, stale=(Stale("env.env.state", "a", "b", "env", "environment TimeLimit"),)),
        "environment `env` begins anew",
    ),
    ("alias", Evidence(first=None, aliases=("noise",)), "`noise` names a tensor that was in a registered"),
    (
        "drawn-before-loop",
        Evidence(first=None, moved=("numpy",), moved_by="code"),
        "generator `numpy` is drawn",
    ),
    (
        "workers",
        Evidence(first=compare.Difference(3, "input", "1", "a", "b"), workers=True),
        "worker processes draw",
    ),
    ("thread", Evidence(first=None, threads=("train.py:3",)), "started at `train.py:3`"),
    ("mode", Evidence(first=None, modes=("net.0.1",)), "`net.get_submodule('0.1')` is in another mode"),
    (
        "workers-stay",
        Evidence(
            first=compare.Difference(3, "input", "1", "a", "b"),
            workers_stay=True,
            loaders=("loader",),
            stale=(Stale("saver.best", "0.5", "None", "saver", "other Saver"),),
        ),
        "the loader's workers stay",
    ),
    (
        "own-generator",
        Evidence(first=None, undisturbed=True, stale=(Stale("rng", "generator a", "generator b"),)),
        "`rng` begins differently at each start",
    ),
    (
        "workers",
        Evidence(first=compare.Difference(3, "input", "1", "a", "b"), undisturbed=True, workers=True),
        "give other samples in each run",
    ),
]


@pytest.mark.parametrize(("id", "facts", "text"), ROWS)
def test_a_row_of_the_table(id: str, facts: Evidence, text: str) -> None:
    told = causes(facts)
    assert told[0].id == id
    assert text in told[0].text


def test_parts_of_a_trained_module_in_another_mode_are_named() -> None:
    """An average that is evaluated now and then stays in that mode, and a resumed run need not have it."""

    def found(trains: str) -> tuple[str, ...]:
        plain = record(boundary(0), boundary(1), boundary(2), kinds={"net": "Net", "net2": "Net"})
        plain.looks[2] = replace(plain.looks[2], evaluating=["net.norm", "net2"])
        plain.optimizers["opt"] = Trained("opt", "SGD", True, [trains], 1)
        other = record(boundary(1), boundary(2))
        return evidence.of_resumed(plain, other, [], compare.Unsteady(), Around()).modes

    assert (found("net.weight"), found("other.weight")) == (("net.norm",), ())


def test_a_variable_goes_into_the_dict_that_is_registered() -> None:
    stale = (Stale("rate", "50.0", "200.0"),)
    (cause,) = causes(Evidence(first=None, stale=stale, notes="progress"))
    assert "progress.update({'rate': 200.0}); and use progress['rate'] instead of `rate`" in cause.mend
    assert "register it" not in cause.mend


def test_a_loader_is_never_told_to_be_registered_as_it_is() -> None:
    inside = Stale("dl's dl._iter", "iterator with 3 left", "iterator with 5 left", "dl's dl", "DataLoader")
    assert causes(Evidence(first=None, stale=(inside,))) == []


def test_a_loader_of_accelerate_is_registered_with_its_adapter() -> None:
    for facts in (
        Evidence(first=None, fetched=True, data="anew", accelerated=True),
        Evidence(first=None, moved=("torch",), moved_by="iterator", accelerated=True),
    ):
        assert "spotguard.integrations.accelerate.register(accelerator, " in causes(facts)[0].mend
    prepared = Entry("iterator", "DataLoaderShard", "torch", {})
    plain = record(boundary(0), boundary(1), boundary(2))
    plain.looks[1] = replace(plain.looks[1], turn=[prepared])
    found = evidence.of_resumed(plain, record(boundary(1), boundary(2)), [], compare.Unsteady(), Around())
    assert found.accelerated


def test_a_variable_set_after_the_restore_is_no_cause_and_a_single_value_is_the_last_one() -> None:
    """`iter_num = guard.restore()`; the number of files in a folder, and an exploration's width that is not registered."""

    def run(begin: int, files: str, width: str) -> Record:
        given = {"files": files, "width": width}
        looks = [boundary(begin, variables={"iter_num": str(begin if begin == 0 else 0), **given})]
        for n in range(begin + 1, 5):
            at = {"iter_num": str(n - 1), **given, "width": f"{width}{n}"}
            looks.append(boundary(n, variables={**at, "iter_num": str(n)}, opened=at))
        return record(*looks)

    plain, other = run(0, "0", "w"), run(2, "1", "v")
    found = evidence.of_resumed(plain, other, [], compare.Unsteady(), Around())
    assert ([each.name for each in found.stale], found.unlike, found.drawn_anew) == (
        ["width"],
        ("files",),
        (),
    )
    assert [each.id for each in causes(found)] == ["variable", "plain"]


@pytest.mark.parametrize(("again", "by"), [(True, "code"), (False, "evaluation")])
def test_an_evaluation_that_a_resumed_run_repeats_is_no_cause(again: bool, by: str) -> None:
    """A policy that acts without gradients in each turn, before it trains, is no evaluation behind the boundary."""

    def turn(begin: str, end: str, *, acts: bool) -> BoundaryRecord:
        acting = [Entry("evaluation", "Policy", "", {"torch": begin})] * acts
        return replace(boundary(3), turn=[*acting, Entry("input", "Policy", "x", {"torch": end})])

    plain = record(boundary(0), boundary(2, generators={"torch": "a"}))
    plain.looks[3] = turn("b", "b", acts=True)
    other = record(boundary(2, generators={"torch": "a"}))
    other.looks[3] = turn("a", "c", acts=again)
    found = evidence.of_resumed(plain, other, [], compare.Unsteady(), Around())
    assert (found.moved, found.moved_by) == (("torch",), by)


def test_each_row_is_shown_by_a_program_or_by_hand() -> None:
    shown = {id for id, _, _ in PLANTS.values()} | {id for id, _, _ in ROWS}
    assert {row.id for row in (*_RESUMED, *_UNDISTURBED)} == shown


def test_nothing_speaks_for_a_cause() -> None:
    assert causes(Evidence(first=compare.Difference(3, "state", "w", "a", "b"), data="same")) == []
