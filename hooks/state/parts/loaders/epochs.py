"""The epochs that samplers were told, and the passes that loaders and datasets count themselves: orders of samples follow from both."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DistributedSampler, Sampler


class LoaderEpochs:
    """The epochs of one loader.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def passes(self) -> dict[str, int]:
        """Return the passes that the loader or its dataset counts itself, and shuffles by, by the name of the count."""
        counts = {name: getattr(holder, name, None) for name, holder in self._counters()}
        return {name: count for name, count in counts.items() if isinstance(count, int)}

    def set_passes(self, passes: dict[str, int]) -> None:
        """Set the counts that `passes` returned."""
        for name, holder in self._counters():
            if name in passes:
                setattr(holder, name, passes[name])

    def _counters(self) -> list[tuple[str, Any]]:
        """The counts of accelerate's loaders, of Fabric's, and of mosaicml-streaming's datasets."""
        dataset = getattr(self._loader, "dataset", None)
        return [("iteration", self._loader), ("_num_iter_calls", self._loader), ("next_epoch", dataset)]

    def of_samplers(self) -> list[int | None]:
        """Return the epochs of the samplers, in a fixed order; None for one without."""
        epochs = (getattr(each, "epoch", None) for each in self.samplers())
        return [each if isinstance(each, int) else None for each in epochs]

    def set_samplers(self, epochs: list[int | None]) -> None:
        """Set the epochs that `of_samplers` returned."""
        for each, epoch in zip(self.samplers(), epochs, strict=False):
            if epoch is not None and hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def samplers(self) -> list[Any]:
        """Return the samplers of the loader, and those inside them: accelerate's sampler of a rank wraps the loader's own, and
        Lightning's one has it in a dataset.
        """
        found: list[Any] = []
        waiting: list[Any] = [self._loader]
        while waiting:
            each = waiting.pop()
            inside = [getattr(each, name, None) for name in ("sampler", "batch_sampler")]
            if isinstance(each, DistributedSampler):
                held = getattr(each.dataset, "__dict__", {}).values()
                inside += [value for value in held if isinstance(value, Sampler)]
            new = [one for one in inside if one is not None and not any(one is known for known in found)]
            found += new
            waiting += new
        return found
