"""A state as training has one: a decoder's weights of very different sizes, buffers, and both of AdamW's moments."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

WIDTH = 512
#: An embedding of 32 MiB, and blocks of 12 MiB: matrices of 1 to 4 MiB, biases and norms of 2 to 8 KiB.
_WORDS, _CONTEXT = 16384, 1024
_COPIES = 3  # a weight and its two moments


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)


class Mixture:
    """The model and its optimizer, of at least `mib` MiB together."""

    def __init__(self, mib: int, *, stepped: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Module()
        words = _WORDS if mib >= 256 else 512
        self.model.words = nn.Embedding(words, WIDTH)
        self.model.places = nn.Embedding(_CONTEXT, WIDTH)
        self.model.register_buffer("mask", torch.ones(_CONTEXT, _CONTEXT, dtype=torch.bool).tril())
        self.model.blocks = blocks = nn.ModuleList()
        while self.nbytes < mib * 2**20:
            blocks.append(Block())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if stepped:
            self.step()

    @property
    def nbytes(self) -> int:
        """With both moments, whether they are there yet or not."""
        buffers = sum(buffer.nbytes for buffer in self.model.buffers())
        return buffers + _COPIES * sum(parameter.nbytes for parameter in self.model.parameters())

    @property
    def moments(self) -> int:
        """Bytes that a load adds to an optimizer that has no state yet."""
        return (_COPIES - 1) * sum(parameter.nbytes for parameter in self.model.parameters())

    def step(self) -> None:
        """Every weight and every moment is another one afterwards."""
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def states(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def checksum(self) -> int:
        """Of every byte of weights, buffers and moments."""
        crc = 0
        for tensor in self._tensors():
            crc = zlib.crc32(tensor.detach().flatten().view(torch.uint8).numpy().data, crc)
        return crc

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.buffers()
        for parameter in self.model.parameters():
            yield parameter
            for name in ("exp_avg", "exp_avg_sq"):
                yield self.optimizer.state[parameter][name]
