"""Settings are read and checked before ranks meet, and a rank whose settings are wrong tells the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.agent.config.resolve import resolve
from spotguard.hooks.arguments.settings import Settings
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.consensus import process_group
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.register import register
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import SpotguardError, UsageError
from tests.fakes.training import small
from tests.fakes.two_guards import PATIENCE, WORLD

pytestmark = pytest.mark.torch

WRONG = {
    "SPOTGUARD_EVERY": "soon",
    "SPOTGUARD_KEEP": "many",
    "SPOTGUARD_STAGE": "here",
    "SPOTGUARD_LOSSY_MOMENTS": "perhaps",
    "SPOTGUARD_BEGIN_ANEW": "perhaps",
    "SPOTGUARD_EXTRAS_WORTH": "much",
    "SPOTGUARD_SKIP_STEPS": "7",
    "SPOTGUARD_RUN_ID": "a/b",
    "SPOTGUARD_STORE": "",
}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Two threads, whose `register` meets as that of two processes does."""
    met, here = cast(JobStore, HashStore()), threading.local()

    def join(machine: str, clock: SystemClock, *_: Any, **__: Any) -> Channel:
        return Channel.join(met, here.rank, WORLD, machine, clock, meet=lambda _: b"life")

    def rank(number: int) -> None:
        here.rank = number

    monkeypatch.setattr(process_group, "join", join)
    numbers = iter(range(WORLD))
    with ThreadPoolExecutor(WORLD, initializer=lambda: rank(next(numbers))) as pool:
        yield pool


def error_of(store: object) -> SpotguardError:
    with pytest.raises(SpotguardError) as caught:
        register(cast(str, store), run_id="run", **small().values)
    return caught.value


@pytest.mark.parametrize("name", [name for name in WRONG if name != "SPOTGUARD_STORE"])
def test_each_setting_is_checked_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, WRONG[name])
    with pytest.raises(UsageError, match=f"{name}|cannot be the name"):
        Settings.of()


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("every", "", "auto"),
        ("every", " OFF ", "off"),
        ("keep", " 3 ", "3"),
        ("keep", " ", "3"),
        ("stage", " /tmp ", "/tmp"),
        ("stage", " ", None),
        ("lossy_moments", "on", True),
        ("begin_anew", " off", False),
        ("extras_worth", " 7 ", 7),
        ("run_id", " gpt ", "gpt"),
    ],
)
def test_a_variable_means_the_same_under_run_and_without_it(
    option: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blanks around it count for nothing, and one that is empty is not set."""
    variable = f"SPOTGUARD_{option.upper()}"
    assert getattr(resolve("run", {}, {variable: text}), option) == value
    monkeypatch.setenv(variable, text)
    own = getattr(Settings.of(), {"lossy_moments": "lossy"}.get(option, option))
    wanted = {"keep": Keep(3), "stage": Path(str(value))}.get(option, value)
    assert own == (None if value is None else wanted)


@pytest.mark.parametrize("wrong", ["ftp://host/x", "file"])
def test_a_rank_whose_settings_or_store_cannot_be_used_tells_the_others(
    wrong: str, ranks: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """No rank waits for it, and each names its reason."""
    (tmp_path / "file").write_text("mine")
    right, bad = tmp_path / "right", wrong if "://" in wrong else tmp_path / "file"
    both = threading.Barrier(WORLD)

    def one(store: object) -> SpotguardError:
        both.wait(PATIENCE)
        return error_of(store)

    errors = [each.result(PATIENCE) for each in [ranks.submit(one, store) for store in (right, bad)]]
    told, own = sorted(map(str, errors), key=len, reverse=True)
    assert told.endswith(own)
    assert told.startswith("rank ")
    assert not right.exists() or not os.listdir(right)
