"""`spotguard verify` on a store that fails, cuts and spoils: what is damaged is said, what only failed for now is not."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.commands.target import Target
from spotguard.commands.verify import verdicts_of
from spotguard.providers.errors import UnavailableError
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Impatient
from tests.fakes.reads import Reads
from tests.fakes.store import Fault


def filled() -> Reads:
    """Two whole checkpoints of several objects."""
    store = Reads()
    for number in (1, 2):
        Save(step=10 * number, save=number, target=1024).write(store)
    store.calls.clear()
    return store


def verdicts(store: Reads, everything: bool = False) -> list[dict[str, Any]]:
    return verdicts_of(Target(store, "run"), everything=everything, say=None, clock=Impatient())


@pytest.mark.parametrize("every", [2, 3])
def test_what_only_fails_for_now_is_no_damage(every: int) -> None:
    """At every k-th manifest and range: every checkpoint is found whole, each byte read once."""
    store = filled()
    store.faults = [Fault(at) for at in range(1, 1000, every)]
    said = verdicts(store, everything=True)
    assert [(each["step"], each["status"]) for each in said] == [(20, "whole"), (10, "whole")]
    plain = filled()
    verdicts(plain, everything=True)
    failed = sum(at < len(store.calls) for at in range(1, 1000, every))
    assert failed > 5
    assert len(store.calls) == len(plain.calls) + failed


def test_a_store_that_is_not_there_is_said_at_once() -> None:
    """Nobody waits a minute for an URL that is spelt wrong."""
    store = filled()
    store.faults = [Fault(at) for at in range(1000)]
    with pytest.raises(UnavailableError, match=r"as it was told to$"):
        verdicts(store)
    assert len(store.calls) == 1


def test_a_store_that_goes_away_for_good_is_no_verdict() -> None:
    """What could not be read is neither whole nor damaged."""
    store = filled()
    store.faults = [Fault(at) for at in range(5, 5000)]
    with pytest.raises(UnavailableError, match="What it holds is not known"):
        verdicts(store)


def test_all_that_is_damaged_is_said_and_nothing_else() -> None:
    """By object, tensor and place; then the next older one is looked at."""
    store = filled()
    prefix = Save(step=20, save=2).prefix
    keys = sorted(key for key in store.objects if key.startswith(prefix) and key.endswith("safetensors"))
    assert len(keys) > 3
    store.corrupt(keys[0], 3)
    store.corrupt(keys[2], len(store.objects[keys[2]]) - 1)
    newest, older = verdicts(store)
    assert (newest["status"], older["status"]) == ("damaged", "whole")
    assert [line.partition(": ")[0] for line in newest["damage"]] == [keys[0], keys[2]]
    assert "header" in newest["damage"][0]
    assert "tensor" in newest["damage"][1]


def test_a_bit_that_flips_on_its_way_is_no_damage() -> None:
    store = filled()
    store.spoil = lambda number, key, start: number == 1
    (said,) = verdicts(store)
    assert (said["status"], said["damage"]) == ("whole", [])
