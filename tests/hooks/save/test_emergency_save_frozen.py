"""What nobody trains is put once, and every later save refers to it, also where time is short."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.errors import CheckpointError
from tests.fakes.training import Job, different, seed
from tests.fakes.watched_store import is_object
from tests.hooks.save.narrow_saves import RATE, Saving, saving

pytestmark = pytest.mark.torch
__all__ = ["saving"]


def adapted() -> Job:
    """A base that nobody trains, and an adapter."""
    seed()
    base, adapter = torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 4)
    for parameter in base.parameters():
        parameter.requires_grad = False
    model = torch.nn.Sequential(base, adapter)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.01)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(3, 64)).square().mean().backward()
        optimizer.step()

    return Job({"model": model, "optimizer": optimizer}, step)


def references(whole: WholeCheckpoint | None) -> dict[str, int]:
    """How many objects lie in which folder; "" is its own."""
    assert whole is not None
    found: dict[str, int] = {}
    for manifest in whole.manifests:
        for entry in manifest.objects:
            found[entry.checkpoint] = found.get(entry.checkpoint, 0) + 1
    return found


def assert_adapted(one: Saving) -> None:
    again, step = one.restored(job=adapted())
    assert step == one.done
    assert different(again.bits(), one.job.bits()) == []
    whole = one.newest()
    assert whole is not None
    assert verify(one.store, whole) == []


def test_frozen_tensors_are_put_once(saving: Callable[..., Saving]) -> None:
    """The second checkpoint refers to the first one's objects, and so do all after it, whatever is pruned."""
    one = saving(job=adapted())
    first = one.background()
    assert references(one.newest()).keys() == {""}
    for _ in range(5):
        one.train()
        later = one.background()
        assert later.nbytes < first.nbytes / 2  # what is referred to was not put
        assert references(one.newest()).keys() == {"", "000000002-0001-0000"}
        assert_adapted(one)
    assert one.manifests() == [f"{one.done:09}-0001-0005"]


def test_a_frozen_tensor_that_is_changed_is_put_again(saving: Callable[..., Saving]) -> None:
    """By its bytes, not by its flag."""
    one = saving(job=adapted())
    one.background()
    one.train()
    with torch.no_grad():
        one.job.values["model"][0].bias.add_(1.0)
    one.state.at_boundary()
    one.background()
    found = references(one.newest())
    assert found["000000002-0001-0000"] > 0
    assert_adapted(one)


def lose_shared(one: Saving, count: int) -> list[str]:
    """Delete objects of the base from the store."""
    largest = sorted(filter(is_object, one.store.objects), key=lambda key: -len(one.store.objects[key]))
    for key in largest[:count]:
        del one.store.objects[key]
    return largest[:count]


@pytest.mark.parametrize("kind", ["background", "manual", "emergency"])
def test_an_earlier_saves_objects_that_are_gone_are_named_and_put_again(
    saving: Callable[..., Saving], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else deleted what is referred to: the very checkpoint that would refer to it is whole."""
    one = saving(job=adapted())
    one.background()
    first = one.done
    one.train()
    one.background()
    assert one.checkpointer.saved.complete == one.done
    one.train()
    (gone, *_) = lose_shared(one, 3)
    found: list[tuple[CheckpointName, bool]] = []

    def see(name: CheckpointName, why: str, objects: Collection[str], heard: bool) -> None:
        found.append((name, gone in why))
        assert (one.checkpointer.last, one.checkpointer.saved.complete) == (None, -1)

    one.checkpointer.damage._found = see
    saved = one.background() if kind == "background" else one.save(1000.0, kind)
    assert saved is not None
    assert found == [(CheckpointName(1, first, 0), True)], "once, before the checkpoint is there"
    assert one.checkpointer.last == saved
    assert references(one.newest())[""] > 3
    assert ["the store has lost 3 objects" in record.message for record in caplog.records] == [True]
    assert_adapted(one)
    one.train()
    one.background()
    assert str(CheckpointName(1, first, 0)) not in references(one.newest()), "what has damaged it may go on"


def test_save_under_way_that_refers_to_objects_found_damaged_meanwhile_has_failed(
    saving: Callable[..., Saving],
) -> None:
    """Its references were made before: the checkpoint is there, and nothing counts on it."""
    one = saving(job=adapted())
    one.background()
    first = CheckpointName(1, one.done, 0)
    one.train()
    publish = one.checkpointer._committer.commit

    def commit(*args: Any) -> None:
        publish(*args)
        shared = [key for key in one.store.objects if f"/{first}/" in key]
        one.checkpointer.damage.add(first, "CRC32 differs", shared, heard=True)

    one.checkpointer._committer.commit = commit  # type: ignore[method-assign, assignment]
    with pytest.raises(
        CheckpointError, match="cannot be restored: checkpoint 000000002-0001-0000 is damaged"
    ):
        one.background()
    assert one.checkpointer.last is None
    one.checkpointer._committer.commit = publish  # type: ignore[method-assign]
    one.train()
    one.background()
    assert references(one.newest()).keys() == {""}
    assert one.checkpointer.saved.complete == one.done


def test_a_new_attempt_begins_with_a_full_one(saving: Callable[..., Saving]) -> None:
    """It refers to nothing of the attempt before."""
    one = saving(job=adapted())
    one.background()
    one.train()
    one.checkpointer.begin_attempt(2)
    one.background()
    assert references(one.newest()).keys() == {""}
    assert_adapted(one)


@pytest.mark.parametrize("lossy", [False, True])
def test_an_emergency_save_refers_too(saving: Callable[..., Saving], lossy: bool) -> None:
    """So that an adapter is saved where its base would never fit."""
    one = saving(job=adapted(), lossy=lossy)
    one.background()
    one.train()
    saved = one.save(4.0)
    assert saved is not None
    assert saved.level == "full"
    assert references(one.newest())["000000002-0001-0000"] > 10
    assert_adapted(one)


def test_a_lower_level_refers_too(saving: Callable[..., Saving]) -> None:
    """The adapter's moments do not fit, its weights do."""
    one = saving(job=adapted())
    one.background()
    one.train()
    one.store.rate = lambda now: RATE / 10
    seconds = 16_400 * 4 / (RATE / 10) + 4
    one.writer.uploads.link.begin(one.clock.monotonic())
    for second in range(1, 11):
        one.clock.advance(1.0)
        one.writer.uploads.link.sent(int(second * RATE / 10), one.clock.monotonic())
    one.writer.uploads.link.end(one.clock.monotonic())
    saved = one.save(seconds)
    assert saved is not None
    assert saved.level == "weights"
    whole = one.newest()
    assert references(whole)["000000002-0001-0000"] > 10
    assert whole is not None
    assert verify(one.store, whole) == []
