"""Copies at boundaries: of tensors of every make, as they were when they were taken."""

from __future__ import annotations

import pytest
import torch

from spotguard.hooks.state.parts.boundary_copies import BoundaryCopies

pytestmark = pytest.mark.torch

MAKES = {
    "vector": lambda: torch.arange(5.0),
    "scalar": lambda: torch.tensor(7),
    "empty": lambda: torch.empty(0, 3),
    "flags": lambda: torch.tensor([True, False]),
    "half": lambda: torch.arange(3).to(torch.bfloat16),
    "slice": lambda: torch.arange(100.0)[40:45],
    "turned": lambda: torch.arange(6.0).view(2, 3).mT,
    "strided": lambda: torch.arange(20.0)[::3],
    "last-channel": lambda: torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
    "inference": lambda: _inferred(),
}


def _inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(4.0)


def shaken(tensors: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        for tensor in tensors:
            tensor.logical_not_() if tensor.dtype == torch.bool else tensor.mul_(3)


@pytest.mark.parametrize("make", MAKES)
def test_a_copy_is_as_it_was_when_it_was_taken(make: str) -> None:
    """Alone, and between others: made at once, taken again and again, and untouched by what comes later."""
    for tensors in ([MAKES[make]()], [torch.ones(3), MAKES[make](), torch.ones(2, dtype=torch.int8)]):
        copies = BoundaryCopies(tensors)
        for _ in range(3):
            expected = [t.clone() for t in tensors]
            copies.take()
            shaken(tensors)
            found = copies.tensors()
            assert all(map(torch.equal, found, expected))
            assert copies.tensors() is found
    assert [t.dtype for t in found] == [t.dtype for t in tensors]


def test_an_earlier_copy_is_made_anew_beside_the_last_one() -> None:
    """By the addresses of the tensors, and of what a save reads instead of them."""
    live = [torch.zeros(3), torch.zeros(2, dtype=torch.int64)]
    copies = BoundaryCopies(live)
    copies.take()
    earlier = copies.taken
    for tensor in live:
        tensor += 1
    copies.take()
    found = copies.as_of(earlier)
    for tensor, copy in zip(live, copies.tensors(), strict=True):
        assert found[tensor.data_ptr()] is found[copy.data_ptr()]
        assert found[tensor.data_ptr()].tolist() == [0] * len(tensor)
        assert copy.tolist() == [1] * len(tensor)


def test_before_the_first_time_they_are_as_they_were_made() -> None:
    """A save that comes before any boundary has something to save."""
    live = torch.ones(3)
    copies = BoundaryCopies([live])
    live.zero_()
    assert copies.tensors()[0].tolist() == [1, 1, 1]


def test_memory_that_is_given_back_or_moved_stands_no_more() -> None:
    """It must not be read: not by its old address, and not by none."""
    for nbytes in (0, 8, 1 << 20):
        live = [torch.ones(3), torch.ones(1000)]
        copies = BoundaryCopies(live)
        assert copies.stand()
        live[1].untyped_storage().resize_(nbytes)
        assert not copies.stand()


def test_a_replaced_tensor_is_not_read_as_the_copied_one() -> None:
    """The block that is read by address stays alive, whoever lets go of it."""
    live = torch.ones(1 << 16)
    copies = BoundaryCopies([live])
    live.data = torch.zeros(2)
    assert copies.stand()
    copies.take()
    assert copies.tensors()[0].sum() == 1 << 16


def test_copies_of_no_tensors_are_empty() -> None:
    copies = BoundaryCopies([])
    copies.take()
    assert copies.stand()
    assert copies.tensors() == []
