"""Streaming datasets: a wrapped loader goes on exactly, a bare one is refused, and other batches after a restart are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, get_worker_info

import spotguard
from spotguard.providers.errors import StateError
from tests.fakes.training import guarded, seed
from tests.tiers import few_fast

data = pytest.importorskip("torchdata.stateful_dataloader")
nodes = pytest.importorskip("torchdata.nodes")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

SAMPLES, EACH, EPOCHS = 8, 4, 3
TOTAL = EACH * EPOCHS


class Stream(IterableDataset[int]):
    """As `datasets.IterableDataset` is: a loaded state is used by the next pass of its epoch, and not reported before."""

    def __init__(self, steps: Any = None) -> None:
        self._ex_iterable = steps
        self._epoch = torch.tensor(0).share_memory_()
        self._state_dict: Any = None
        self._starting_state_dict: Any = None

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def state_dict(self) -> Any:
        return None if self._state_dict is None else dict(self._state_dict)

    def load_state_dict(self, state: Any) -> None:
        self._starting_state_dict = state

    def __iter__(self) -> Iterator[int]:
        begin = self._starting_state_dict
        at = begin["at"] if begin and begin["epoch"] == self.epoch else 0
        self._state_dict = {"at": at, "epoch": self.epoch}
        worker = get_worker_info()
        for number in range(at, SAMPLES):
            self._state_dict["at"] = number + 1
            if worker is None or number % worker.num_workers == worker.id:
                yield number + 100 * self.epoch


Registered = tuple[Any, Any]


def stateful(workers: int) -> Registered:
    return wrapped(
        data.StatefulDataLoader(
            Stream(), batch_size=2, num_workers=workers, multiprocessing_context=fork(workers)
        )
    )


def wrapped(loader: Any) -> Registered:
    loader = spotguard.ResumableLoader(loader)
    return loader, loader


def alone() -> Registered:
    """The dataset without a loader, two examples at a time."""
    stream = spotguard.ResumableLoader(Stream())
    return _Pairs(stream), stream


class _Pairs:
    def __init__(self, stream: spotguard.ResumableLoader) -> None:
        self.dataset = stream

    def __iter__(self) -> Iterator[torch.Tensor]:
        examples = iter(self.dataset)
        return (torch.tensor([one, next(examples)]) for one in examples)


def distributed(workers: int) -> Registered:
    sampler: Any = DistributedSampler(range(SAMPLES), num_replicas=1, rank=0)  # type: ignore[arg-type]
    return wrapped(
        data.StatefulDataLoader(
            range(SAMPLES),
            batch_size=2,
            sampler=sampler,
            num_workers=workers,
            multiprocessing_context=fork(workers),
        )
    )


class Passes(IterableDataset[int]):
    """As `streaming.StreamingDataset` is: it counts its passes itself, and their order follows from the count."""

    next_epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.next_epoch))
        self.next_epoch += 1
        return iter(order.tolist())


def counted() -> Registered:
    return wrapped(DataLoader(Passes(), batch_size=2))


def fork(workers: int) -> str | None:
    return "fork" if workers else None


CASES: dict[str, Callable[[], Registered]] = {
    "stream": lambda: stateful(0),
    "stream, one worker": lambda: stateful(1),
    "stream, two workers": lambda: stateful(2),
    "shuffle buffer": lambda: wrapped(data.StatefulDataLoader(buffered(), batch_size=2)),
    "shuffle buffer alone": lambda: (lambda stream: (_Pairs(stream), stream))(
        spotguard.ResumableLoader(buffered())
    ),
    "stream alone": alone,
    "sampler": lambda: distributed(0),
    "sampler, two workers": lambda: distributed(2),
    "passes": counted,
}


def life(
    make: Callable[[], Registered], folder: Path | None, until: int, again: bool = False
) -> list[list[int]]:
    """Train to `until` steps and save there; returns all batches. `again`: save once more before the first batch."""
    seed()
    loader, registered = make()
    progress: dict[str, Any] = {"epoch": 0, "seen": []}
    model = nn.Linear(1, 1)
    if folder is None:
        train(loader, progress, until, lambda: None)
        return progress["seen"]  # type: ignore[no-any-return]
    with guarded(folder, {"model": model, "loader": registered, "progress": progress}) as guard:
        guard.restore()
        if again:
            guard.save()
        else:
            train(loader, progress, until, guard.step)
            guard.save()
    return progress["seen"]  # type: ignore[no-any-return]


def train(loader: Any, progress: dict[str, Any], until: int, boundary: Callable[[], object]) -> None:
    told: list[Any] = [getattr(loader, "dataset", None), getattr(loader, "sampler", None)]
    tell = next((each.set_epoch for each in told if hasattr(each, "set_epoch")), lambda epoch: None)
    for epoch in range(progress["epoch"], EPOCHS):
        tell(epoch)
        for batch in loader:
            progress["seen"].append(batch.tolist())
            boundary()
            if len(progress["seen"]) == until:
                return
        progress["epoch"] = epoch + 1


@pytest.mark.parametrize(
    ("cut", "case"),
    [
        *((EACH + 2, case) for case in CASES),
        *((cut, "stream") for cut in (1, EACH, 2 * EACH)),
        # The other pairs go the same way, and each row is three lives.
        *few_fast(((cut, case) for case in CASES if case != "stream" for cut in (1, EACH, 2 * EACH)), 0),
    ],
)
def test_the_batches_are_those_of_an_uninterrupted_run(case: str, cut: int, folder: Path) -> None:
    """Cut in the first pass, in a later one and at their ends; and saved again before the first batch after it."""
    expected = life(CASES[case], None, TOTAL)
    assert len({tuple(each) for each in expected}) > EACH, "the passes differ"
    life(CASES[case], folder, cut)
    life(CASES[case], folder, cut, again=True)
    assert life(CASES[case], folder, TOTAL) == expected


# --- refused -----------------------------------------------------------------------------------------------------


class BufferShuffledExamplesIterable:
    buffer_size = 16


def buffered() -> Stream:
    inside = SimpleNamespace(ex_iterables=[SimpleNamespace(), BufferShuffledExamplesIterable()])
    return Stream(SimpleNamespace(ex_iterable=inside))


class Saying(DataLoader[int]):
    """As `streaming.StreamingDataLoader` is."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load."""


class OwnLoader:
    """A loader that a script has written."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < EACH:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class History(OwnLoader):
    """What can be indexed is no stream."""

    def __getitem__(self, at: int) -> int:
        return at


class Weighing(Sampler[int]):
    """A sampler whose weights training changes."""

    def __init__(self) -> None:
        self.weights = [1.0] * SAMPLES

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(SAMPLES), key=self.weights.__getitem__))

    def state_dict(self) -> dict[str, list[float]]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.weights = state["weights"]


REFUSED: dict[str, Callable[[], Any]] = {
    "dataset": Stream,
    "stateful loader": lambda: data.StatefulDataLoader(Stream()),
    "loader with its own state": lambda: Saying(Passes()),
    "plain loader": lambda: DataLoader(Passes()),
    "nodes": lambda: nodes.Loader(nodes.IterableWrapper(range(4))),
    "own iterable": OwnLoader,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_iterable_with_a_state_is_registered_in_a_wrapper_only(kind: str, folder: Path) -> None:
    """The message has the line to write, and with it the loader is taken, without a word."""
    loader = REFUSED[kind]()
    values = {"model": nn.Linear(1, 1)}
    line = r"loader = spotguard\.ResumableLoader\(loader\) \[SG402\]"
    with pytest.raises(StateError, match=line), guarded(folder, {**values, "loader": loader}):
        pass
    with guarded(folder, {**values, "loader": spotguard.ResumableLoader(loader)}):
        pass


def test_a_collection_with_a_state_is_no_loader(folder: Path) -> None:
    with guarded(folder, {"model": nn.Linear(1, 1), "history": History()}) as guard:
        guard.restore()
        guard.save()


def test_a_sampler_may_have_a_state_beside_its_loader(folder: Path) -> None:
    sampler = Weighing()
    loader = spotguard.ResumableLoader(DataLoader(range(SAMPLES), sampler=sampler))  # type: ignore[arg-type]
    values = {"model": nn.Linear(1, 1), "sampler": sampler}
    with guarded(folder, {**values, "loader": loader}):
        pass
    with pytest.raises(StateError, match="register the loader that reads it"), guarded(folder, values):
        pass


# --- said after a restart ----------------------------------------------------------------------------------------


class Drawn(IterableDataset[Any]):
    """Its order begins with a number that nothing seeds."""

    def __init__(self, begin: int, form: Callable[[int], Any]) -> None:
        self._begin, self._form = begin, form

    def __iter__(self) -> Iterator[Any]:
        return (self._form(number) for number in range(self._begin, self._begin + SAMPLES))


FORMS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: number,
    "text": lambda number: {"text": f"sample {number}"},
    "large": lambda number: (torch.full((100, 100), number), {"label": number}),
    "bfloat16": lambda number: torch.full((3,), number, dtype=torch.bfloat16),
    "transposed": lambda number: torch.full((3, 5), number).mT,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("other", [0, 3])
def test_other_batches_than_before_the_restart_are_said(
    form: str, other: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, when the pass is resumed; the same batches say nothing."""
    first = spotguard.ResumableLoader(DataLoader(Drawn(0, FORMS[form]), batch_size=2))
    batches = iter(first)
    next(batches), next(batches)
    resumed = spotguard.ResumableLoader(DataLoader(Drawn(other, FORMS[form]), batch_size=2))
    resumed.load_state_dict(first.state_dict())
    assert len(list(resumed)) == EACH - 2
    assert caplog.text.count("the loader's first 2 batches are not those of before") == (1 if other else 0)
