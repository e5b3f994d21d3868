"""The tensors of torchvision's ResNet-50, by their shapes, and nothing else of it."""

from __future__ import annotations

from torch import nn

#: (blocks, width) of its four stages; a block ends four times as wide.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


class ResNet50Shapes(nn.Sequential):
    """161 parameters (25,557,032 numbers) and 159 buffers. It has no forward that means anything."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [*_convolution(3, 64, 7)]
        inputs = 64
        for blocks, width in _STAGES:
            for block in range(blocks):
                layers += [*_convolution(inputs, width, 1), *_convolution(width, width, 3)]
                layers += _convolution(width, 4 * width, 1)
                if block == 0:
                    layers += _convolution(inputs, 4 * width, 1)  # the shortcut that changes the width
                inputs = 4 * width
        super().__init__(*layers, nn.Linear(inputs, 1000))


def _convolution(inputs: int, outputs: int, size: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, bias=False), nn.BatchNorm2d(outputs)
