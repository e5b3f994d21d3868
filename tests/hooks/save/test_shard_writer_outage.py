"""A store that was away in the middle of a save may have lost what it took before: it is looked at, and put again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import checkpoint_prefix
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.plan.write_plan import ALL, WriteProgress
from spotguard.hooks.commit.upload.transfer import StateChanged
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.providers.errors import StoreError, ThrottledError, UnavailableError
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Hurried
from tests.fakes.store import FakeStore
from tests.hooks.commit.writes import NAME, state_tensors

pytestmark = pytest.mark.torch

#: Bytes of an object, and how many there are of that size.
OBJECT, COUNT = 64 * 2**10, 6

#: What becomes of the objects of a store that is away.
Meanwhile = Callable[[dict[str, bytes]], object]


class Away:
    """A save to a store that fails at some requests, and has lost something when it answers again.

    Args:
        at: by the number of a request of a verb.
    """

    def __init__(
        self,
        at: dict[tuple[str, int], Meanwhile],
        *,
        error: type[StoreError] = UnavailableError,
        parallel: int = 1,
    ) -> None:
        self.below = FakeStore()
        self.below.parallel = parallel
        self.store = CalledStore(self.below, self._before)
        self.writer = ShardWriter(self.store, "run")
        self.writer.uploads.width.object_bytes = OBJECT
        self.state_tensors = state_tensors(
            **{f"t{n}": torch.full((OBJECT // 8,), float(n)) for n in range(2 * COUNT)}
        )
        self.write_progress = WriteProgress(self.writer.plans.of(self.state_tensors))
        self._at, self._error = at, error
        #: Whether the draft took all for there, at each listing.
        self.had_all: list[bool] = []

    def _before(self, request: Request) -> None:
        if request.verb == "list":
            self.had_all.append(self.write_progress.has(ALL))
        number = self.asked(request.verb) - 1
        if (meanwhile := self._at.pop((request.verb, number), None)) is not None:
            meanwhile(self.below.objects)
            raise self._error("it is away")

    def asked(self, verb: str) -> int:
        return sum(each.verb == verb for each in self.store.requests)

    def save(self, scope: CancelScope | None = None) -> None:
        """All that its manifest would name is there, and nothing else."""
        written = self.writer.write(
            self.state_tensors, NAME, scope or CancelScope(Hurried()), write_progress=self.write_progress
        )
        named = {checkpoint_prefix("run", NAME) + each.name: each.size for each in written.objects}
        assert named == {key: len(data) for key, data in self.below.objects.items()}


@pytest.fixture
def away() -> Iterator[Callable[..., Away]]:
    with ExitStack() as stack:

        def make(at: dict[tuple[str, int], Meanwhile], **more: object) -> Away:
            made = Away(at, **more)  # type: ignore[arg-type]
            stack.enter_context(closing(made.writer))
            return made

        yield make


def first_is_lost(objects: dict[str, bytes]) -> None:
    objects.pop(min(objects, default=""), None)


def last_is_cut(objects: dict[str, bytes]) -> None:
    objects[max(objects)] = b"half"


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("lose", [first_is_lost, last_is_cut, dict.clear])
def test_objects_lost_in_an_outage_are_put_again(
    away: Callable[..., Away], lose: Meanwhile, parallel: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was lost, and the log says so."""
    one = away({("put", 5): lose}, parallel=parallel)
    one.save()
    assert one.asked("list") >= 1
    assert "objects of this save: spotguard uploads them again" in caplog.text


@pytest.mark.parametrize(
    ("error", "last"), [(UnavailableError, False), (ThrottledError, True)], ids=["away", "busy"]
)
def test_objects_still_in_the_store_are_put_once(
    away: Callable[..., Away], error: type[StoreError], last: bool
) -> None:
    """A store that is busy was most likely not away: it is asked at the end, and once for all that it refused."""
    one = away({("put", 3): len, ("put", 5): len}, error=error)
    one.save()
    assert one.asked("put") == len(one.below.objects) + 2
    verbs = [each.verb for each in one.store.requests]
    assert (verbs.index("list") == len(verbs) - 1) == last
    assert one.asked("list") == (1 if last else 2)


def test_a_store_that_goes_away_again_is_looked_at_again(away: Callable[..., Away]) -> None:
    """While it is listed, which doubts what was put since, and when what was lost is put again."""
    one = away({("put", 4): first_is_lost, ("list", 0): first_is_lost, ("put", 7): dict.clear})
    one.save()
    assert one.asked("list") == 3
    assert one.asked("read_into"), "behind the listing that failed"


@pytest.mark.parametrize("parallel", [1, 4])
def test_an_outage_at_the_last_object_is_seen_to_before_the_end(
    away: Callable[..., Away], parallel: int
) -> None:
    """Nothing else is missing by then, and not all is taken for there."""
    last = len(away({}).write_progress.missing()) - 1
    one = away({("put", last): dict.clear}, parallel=parallel)
    one.save()
    assert one.had_all[0] is False


def test_objects_doubted_after_an_outage_are_looked_at_by_the_next_part(away: Callable[..., Away]) -> None:
    """The save was called off before anybody could look."""
    scope = CancelScope(Hurried())

    def withdrawn(objects: dict[str, bytes]) -> None:
        objects.clear()
        scope.abandon("the notice was withdrawn")

    one = away({("put", 5): withdrawn})
    with pytest.raises(Abandoned):
        one.save(scope)
    assert not one.write_progress.has(ALL)
    one.save()
    assert one.asked("list") == 1


def test_a_lost_object_whose_state_has_moved_is_not_put_again(away: Callable[..., Away]) -> None:
    """A manifest may name its bytes already: other bytes under its name would be a damaged checkpoint."""
    one = away({})

    def lost_and_changed(objects: dict[str, bytes]) -> None:
        first_is_lost(objects)
        for state_tensor in one.state_tensors:
            state_tensor.tensor.add_(1.0)

    one._at[("put", 3)] = lost_and_changed
    with pytest.raises(StateChanged, match="was changed before spotguard could upload it a second time"):
        one.save()
    assert "run/checkpoints/000000005-0001-0000/00000-of-00001/0000.safetensors" not in one.below.objects
