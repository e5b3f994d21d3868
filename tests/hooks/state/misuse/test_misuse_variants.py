"""Ways of using spotguard wrongly, each preempted in its middle and resumed: what does not end like the undisturbed run was
warned about in both lives, by name; what does, was not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.testing import preempt
from tests.fakes.loops import Pair, said
from tests.fakes.training import guarded

pytestmark = pytest.mark.torch

TOTAL, CUT = 16, 8

#: The warning that each gets, in each of its lives.
WARNED = {
    "good": "",
    "one_opt_missing": "an optimizer is not registered (AdamW trains b.weight, b.bias)",
    "step_first": "comes before optimizer.step() (",
    "step_between": "comes between two optimizers, and ob steps after it (",
    # A shuffled pass begins with another order, whatever the script leaves out of it.
    "plain_loader_skip": "a loader is not registered (of range)",
}
EXACT = {"good"}


def trained(kind: str, store: Path, cut: int = -1) -> torch.Tensor:
    """One life, to its end or to its preemption. Returns all weights."""
    pair = Pair()
    values = pair.values
    if kind == "one_opt_missing":
        del values["ob"]
    loader: Iterable[Any] = DataLoader(range(TOTAL), batch_size=None, shuffle=True)  # type: ignore[arg-type]
    with guarded(store, values) as guard:
        done = guard.restore()
        batches = None
        if kind == "plain_loader_skip":
            batches = iter(loader)
            for _ in range(done):
                next(batches)
        for number in range(done, TOTAL):
            if kind == "step_first":
                guard.step()
            if number == cut:
                preempt(guard, seconds=20)
            pair.backward(number if batches is None else int(next(batches)))
            pair.oa.step()
            if kind == "step_between":
                guard.step()
            pair.ob.step()
            if kind not in ("step_first", "step_between"):
                guard.step()
    return torch.cat([p.detach().flatten() for layer in (pair.a, pair.b) for p in layer.parameters()])


@pytest.mark.parametrize("kind", WARNED)
def test_misuse_variants(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    undisturbed = trained(kind, folder / "undisturbed")
    caplog.clear()
    with pytest.raises(Preempted):
        trained(kind, folder / "cut", CUT)
    lives = [[*said(caplog)]]
    caplog.clear()
    resumed = trained(kind, folder / "cut")
    lives.append(said(caplog))
    assert torch.equal(undisturbed, resumed) is (kind in EXACT)
    for life in lives[: 1 if kind == "plain_loader_skip" else 2]:  # a resumed run searches for no loader
        warned = [each for each in life if "guard.step() (" in each or "not registered (" in each]
        assert [WARNED[kind] in each for each in warned] == ([True] if WARNED[kind] else []), life


@pytest.mark.parametrize("kind", ["step_first", "step_between"])
def test_the_lines_of_both_calls_are_named(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    trained(kind, folder / "store")
    (warned,) = [each for each in said(caplog) if "guard.step() (" in each]
    lines = Path(__file__).read_text().splitlines()
    guard_at = next(
        i for i, line in enumerate(lines, 1) if line.strip() == "guard.step()" and kind in lines[i - 2]
    )
    optimizer = "oa" if kind == "step_first" else "ob"
    step_at = next(i for i, line in enumerate(lines, 1) if line.strip() == f"pair.{optimizer}.step()")
    assert f"({Path(__file__).name}:{guard_at})" in warned
    assert f"({Path(__file__).name}:{step_at})" in warned
