"""The channel of a job that torch has made: one where there are others, and the way out where they cannot be met."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from torch import distributed
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.testing._internal.distributed.fake_pg import FakeStore

from spotguard.hooks.consensus import process_group
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UsageError

pytestmark = pytest.mark.torch


@pytest.fixture
def group() -> Iterator[None]:
    yield
    distributed.destroy_process_group()


def test_a_process_that_is_alone_needs_no_channel() -> None:
    assert process_group.join("here", SystemClock()) is None


def test_a_group_of_one_needs_no_channel(group: None) -> None:
    """As torchrun makes it for one process."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    assert process_group.join("here", SystemClock()) is None


def test_several_processes_without_a_group_are_told_what_to_do() -> None:
    """Not to go on each for itself."""
    with pytest.raises(UsageError, match=r"WORLD_SIZE is 4.*init_process_group"):
        process_group.join("here", SystemClock(), "4")


def test_the_first_rank_hosts_the_store_unless_its_launcher_does() -> None:
    """It is the one that must leave last."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert process_group._hosted(PrefixStore("a", PrefixStore("b", store)), served=False)
    assert not process_group._hosted(HashStore(), served=False)
    assert not process_group._hosted(store, served=True)


class OldStore(TCPStore):
    """As in torch 2.6: a connection cannot be copied for another thread."""

    @property
    def clone(self) -> object:
        raise AttributeError("clone")


def test_a_store_whose_threads_would_block_each_other_is_refused() -> None:
    old = OldStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(UsageError, match=r"needs torch 2\.8 or newer.* \[SG419\]"):
        process_group._check_connections(old)
    process_group._check_connections(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    process_group._check_connections(HashStore())
