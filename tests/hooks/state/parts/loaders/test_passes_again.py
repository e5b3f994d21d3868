"""A loop over passes that begins at its first number again in a resumed run: named once, at the first iterator behind the restore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, TensorDataset

from spotguard.hooks.state.parts.loaders import ResumableLoader

pytestmark = pytest.mark.torch


def restored(epoch: int) -> ResumableLoader:
    """A loader as behind a restore."""
    before = ResumableLoader(DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2))
    for _ in range(epoch):
        list(before)
    loader = ResumableLoader(DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2))
    loader.load_state_dict(before.state_dict())
    loader.restored()
    return loader


def from_0(loader: ResumableLoader) -> None:
    for _ in range(3):
        for _ in loader:
            pass


def in_a_function(loader: ResumableLoader) -> None:
    def train() -> None:
        for _ in enumerate(loader):
            pass

    for epoch in range(3):
        train()
        assert epoch >= 0


def by_iter(loader: ResumableLoader) -> None:
    for _ in range(3):
        batches = iter(loader)
        while next(batches, None) is not None:
            pass


def from_its_epoch(loader: ResumableLoader) -> None:
    for _ in range(loader.epoch, 3):
        for _ in loader:
            pass


def of_folds(loader: ResumableLoader) -> None:
    for _ in range(1):
        for _ in range(loader.epoch, 3):
            list(loader)


def without_passes(loader: ResumableLoader) -> None:
    done = 0
    while done < 3:
        done += len(list(loader))


def from_a_note(loader: ResumableLoader) -> None:
    notes: dict[str, Any] = {"epoch": loader.epoch}
    for _ in range(notes["epoch"], 3):
        list(loader)


def skipping(loader: ResumableLoader) -> None:
    begins = loader.epoch
    for epoch in range(3):
        if epoch >= begins:
            list(loader)


@pytest.mark.parametrize("loop", [from_0, in_a_function, by_iter])
def test_passes_that_begin_again_are_named(
    loop: Callable[[ResumableLoader], None], caplog: pytest.LogCaptureFixture
) -> None:
    loop(restored(2))
    (said,) = caplog.messages
    assert said.startswith("loader: the loop at test_passes_again.py:")
    assert "begins at its first number again, and its epoch is 2 here" in said
    caplog.clear()
    loop(restored(0))
    assert caplog.messages == []


@pytest.mark.parametrize("loop", [from_its_epoch, of_folds, without_passes, from_a_note, skipping])
def test_nothing_is_said_of_a_loop_that_goes_on(
    loop: Callable[[ResumableLoader], None], caplog: pytest.LogCaptureFixture
) -> None:
    loop(restored(2))
    assert caplog.messages == []
