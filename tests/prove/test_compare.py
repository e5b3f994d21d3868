"""The first thing in which two runs differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotguard.prove.compare import Unsteady, batches, differences, unsteady
from spotguard.prove.record import Record
from spotguard.prove.stale import aliases, drawn_anew
from tests.prove.recorded import boundary, record, tensor

NOTHING = Unsteady()


def trained(*values: int, **facts: str) -> Record:
    """A run that begins at 0, with one registered tensor and a loss for each step."""
    looks = [boundary(0, state={"w": tensor(0)})]
    for step, value in enumerate(values, 1):
        turn = [("input", "Linear", tensor(100 + step)), ("loss", "", f"float32 {value}.5")]
        looks.append(boundary(step, turn=turn, state={"w": tensor(value)}))
    return record(*looks, **facts)


def test_equal_runs_differ_in_nothing() -> None:
    assert differences(trained(1, 2, 3), trained(1, 2, 3), NOTHING) == []


def test_the_first_step_that_differs_is_told_with_all_that_differs_there() -> None:
    found = differences(trained(1, 2, 3), trained(1, 9, 8), NOTHING)
    assert [(each.step, each.kind, each.name) for each in found] == [(2, "loss", "1"), (2, "state", "w")]
    assert (found[1].plain, found[1].other) == (tensor(2), tensor(9))


def test_a_resumed_run_is_compared_from_its_begin_on() -> None:
    plain, resumed = trained(1, 2, 3), trained(1, 2, 3)
    resumed.began, resumed.looks = 2, {step: resumed.looks[step] for step in (2, 3)}
    assert differences(plain, resumed, NOTHING) == []
    resumed.looks[2] = boundary(2, state={"w": tensor(7)})
    assert [(each.step, each.restored) for each in differences(plain, resumed, NOTHING)] == [(2, True)]


def test_a_batch_that_changes_nothing_is_no_difference() -> None:
    """A model is called for a log, say, in one run and not in the other."""
    plain = record(boundary(0), boundary(1, turn=[("input", "Linear", tensor(1))]))
    other = record(boundary(0), boundary(1, turn=[("input", "Linear", tensor(2))]))
    assert differences(plain, other, NOTHING) == []


def test_work_done_once_after_a_restore_is_no_difference() -> None:
    """A dry run of forward and backward before the loop comes in the first turn of each start."""
    step = [("loss", "", "float32 1.5")]
    plain = record(*(boundary(n, turn=step if n else []) for n in range(4)))
    resumed = record(boundary(2), boundary(3, turn=[("loss", "", "float32 7.5"), *step]))
    assert differences(plain, resumed, NOTHING) == []


def test_a_tensor_that_is_missing_after_the_restore_differs() -> None:
    plain = record(boundary(0, state={"w": tensor(1), "b": tensor(2)}))
    other = record(boundary(0, state={"w": tensor(1)}))
    assert [(each.name, each.other) for each in differences(plain, other, NOTHING)] == [("b", "")]


def test_an_unregistered_value_counts_once_both_runs_have_it() -> None:
    plain = record(
        boundary(0), boundary(1, modules={"ema.w": tensor(1)}), boundary(2, modules={"ema.w": tensor(2)})
    )
    late = record(boundary(0), boundary(1), boundary(2, modules={"ema.w": tensor(9)}))
    assert [(each.step, each.kind) for each in differences(plain, late, NOTHING)] == [(2, "modules")]


def test_clocks_and_generators_that_nobody_seeds_are_left_out() -> None:
    first = record(
        *(boundary(n, state={"notes.at": f"{n}.1"}, generators={"python": "aa"}) for n in range(3))
    )
    second = record(
        *(boundary(n, state={"notes.at": f"{n}.2"}, generators={"python": "bb"}) for n in range(3))
    )
    found = unsteady(first, second)
    assert found.items == {("state", "notes.at"), ("generators", "python")}
    assert differences(first, second, found) == []


def test_a_tensor_that_differs_by_itself_is_never_left_out() -> None:
    first, second = trained(1, 2), trained(1, 3)
    assert unsteady(first, second).items == frozenset()
    assert differences(first, second, unsteady(first, second))


def test_a_generator_that_is_seeded_after_restore_is_compared_from_then_on() -> None:
    first = record(boundary(0, generators={"torch": "aa"}), boundary(1, generators={"torch": "cc"}))
    second = record(boundary(0, generators={"torch": "bb"}), boundary(1, generators={"torch": "cc"}))
    assert unsteady(first, second).items == frozenset()
    assert differences(first, second, NOTHING) == []


def test_an_average_that_is_kept_in_variables_differs_to_the_end() -> None:
    def run(begin: int, shadow: int, batch: int) -> Record:
        return record(
            *(
                boundary(
                    n,
                    state={"model.weight": tensor(n)},
                    variables={"shadow": tensor(shadow + n), "x": tensor(batch) if n == 3 else tensor(n)},
                )
                for n in range(begin, 6)
            )
        )

    found = differences(run(0, 50, 1), run(2, 90, 2), NOTHING)
    assert [(each.kind, each.name) for each in found] == [("kept", "shadow")]
    assert differences(run(0, 50, 1), run(2, 50, 2), NOTHING) == [], "it differs at one step only"


def test_a_list_of_copies_that_a_resumed_run_fills_anew_is_a_log() -> None:
    def run(begin: int, length: int) -> Record:
        kept = {"seen[0]": tensor(begin), "len(seen)": str(length)}
        return record(
            *(boundary(n, state={"model.weight": tensor(n)}, variables=kept) for n in range(begin, 6))
        )

    assert differences(run(0, 5), run(2, 3), NOTHING) == []
    assert [each.name for each in differences(run(0, 5), run(2, 5), NOTHING)] == ["seen[0]"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([5, 6, 7, 8], ("same", 0)),
        ([6, 7, 8, 9], ("ahead", 1)),
        ([7, 8, 9, 10], ("ahead", 2)),
        ([3, 4, 5, 6], ("behind", 2)),
        ([1, 2, 3, 4], ("anew", 4)),
        ([31, 32, 33, 34], ("other", 0)),
    ],
)
def test_how_the_batches_stand(given: list[int], found: tuple[str, int]) -> None:
    """The undisturbed run has batches 1 to 12; the other one was resumed at step 4."""
    plain = record(*(boundary(n, turn=[("input", "", tensor(n))]) for n in range(13)))
    turns = [boundary(4), *(boundary(n, turn=[("input", "", tensor(g))]) for n, g in enumerate(given, 5))]
    assert batches(plain, record(*turns), 4) == found


def test_a_batch_that_is_changed_on_its_way_is_known_as_it_was_fetched() -> None:
    plain = record(
        *(boundary(n, turn=[("batch", "", tensor(n)), ("input", "", tensor(n + 50))]) for n in range(9))
    )
    turns = [
        boundary(n, turn=[("batch", "", tensor(n + 1)), ("input", "", tensor(n + 70))]) for n in range(4, 8)
    ]
    assert batches(plain, record(boundary(3), *turns), 3) == ("ahead", 1)


def test_a_name_that_a_registered_object_has_left_behind_is_no_difference() -> None:
    """`X = …; progress = {"X": X}`, of which only `progress["X"]` is used: the restore fills what `X` still names."""

    def run(begin: int, held: list[str], shift: int = 0) -> Record:
        of_step = {n: {"X": tensor(begin), "shadow": tensor(shift + n)} for n in range(begin, 6)}
        looks = (boundary(n, state={"progress.X": tensor(n)}, variables=of_step[n]) for n in of_step)
        return record(*(replace(look, held=held) for look in looks))

    assert differences(run(0, ["X"]), run(2, ["X"]), NOTHING) == []
    assert aliases(run(0, ["X"]), run(2, ["X"]), 2) == ("X",), "training may read it"
    assert drawn_anew(run(0, ["X"]), run(2, ["X"]), 2, NOTHING) == ()
    assert [each.name for each in differences(run(0, []), run(2, ["X"]), NOTHING)] == ["X"]
    changed = differences(run(0, ["shadow", "X"]), run(2, ["shadow", "X"], 50), NOTHING)
    assert [each.name for each in changed] == ["shadow"], "the script changes it in place"
