"""The values that `self.log` has collected in a training epoch, the states of torchmetrics, and the files of `ModelCheckpoint`.

Lightning's checkpoints lack all three.

A mean that `self.log(on_epoch=True)` forms is a sum and a count per logged name. A checkpoint holds them with the arguments of the
call, so that a resumed run can make the entry anew, also where the rest of the epoch logs nothing more.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .refusals import check_members, refused

#: Arguments of `self.log` that an entry keeps as plain values.
_ARGUMENTS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
    "metric_attribute",
)
#: Attributes of an entry: its sum or extreme, its count of samples, the value of the last step.
_VALUES = ("value", "cumulated_batch_size", "_forward_cache", "_update_count", "has_reset")
#: Attributes of the trainer's connector that say what the next `self.log` resets.
_CONNECTOR = ("_first_loop_iter", "_current_fx")
#: Attributes of a `ModelCheckpoint` that its own state lacks: the step of its last file, which it does not write twice, and that file.
_SAVED = ("_last_global_step_saved", "_last_checkpoint_saved")
_SHOWN = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


class CheckpointFiles:
    """The files that each `ModelCheckpoint` of a run has written up to the boundary.

    A restarted run writes a file again that an earlier life wrote behind the boundary. Lightning would keep both (`-v1`). So the
    names are noted in order in a file beside them, and a boundary has their number. Every other file is as Lightning finds it.

    Args:
        trainer: the Trainer.
        unnamed: the callbacks whose directory the script leaves to Lightning, which names another one at each start. A resumed
            run writes on where it began.
    """

    def __init__(self, trainer: Any, unnamed: Sequence[Any]) -> None:
        kind = importlib.import_module(
            f"{type(trainer).__module__.partition('.trainer')[0]}.callbacks"
        ).ModelCheckpoint
        self._trainer, self._unnamed = trainer, unnamed
        self._callbacks = [each for each in trainer.checkpoint_callbacks if isinstance(each, kind)]
        for each in self._callbacks:
            check_members("lightning", each, ["file_exists"])
        #: By folder, because several callbacks may write into one.
        self._notes = {str(each.dirpath): _Notes() for each in self._callbacks}

    def state(self) -> dict[str, Any]:
        written = [len(each.written) for each in self._notes.values()]
        return {
            "written": written,
            "folders": [str(each.dirpath) for each in self._callbacks],
            "saved": [{name: getattr(each, name) for name in _SAVED} for each in self._callbacks],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        for each, folder, saved in zip(self._callbacks, state["folders"], state["saved"], strict=True):
            vars(each).update(saved)
            if each in self._unnamed:
                each.dirpath = folder
        self._notes = {str(each.dirpath): _Notes() for each in self._callbacks}
        for notes, count in zip(self._notes.values(), state["written"], strict=True):
            notes.restored = count

    def check_best(self, run_id: str) -> None:
        """Refuse to resume if a file with the best weights is gone, which the script may load after training.

        Raises:
            UsageError: the file is not here.
        """
        for each in self._callbacks if self._trainer.is_global_zero else ():
            best = each.best_model_path
            # A life that was killed may have put a better one into its place, which this one makes again.
            places = (best, os.path.join(str(each.dirpath), f".spotguard-{run_id}"))
            if each.monitor is not None and best and not any(map(each._fs.exists, places)):
                raise refused(
                    f"ModelCheckpoint(monitor={each.monitor!r}) has its best weights in {best}, which is not on this machine: bring "
                    "it back, or begin another run with a dirpath that outlives the machine"
                )

    def follow(self, run_id: str) -> None:
        """Let no callback find a file that this run wrote behind the restored boundary."""
        for folder, notes in self._notes.items():
            files = next(each._fs for each in self._callbacks if str(each.dirpath) == folder)
            notes.open(files, os.path.join(folder, f".spotguard-{run_id}"), self._trainer)
        for each in self._callbacks:
            each.file_exists = _asking(each.file_exists, str(each.dirpath), self._notes[str(each.dirpath)])

    def leave(self) -> None:
        """Give the callbacks their own method back, with which they can be pickled."""
        for each in self._callbacks:
            vars(each).pop("file_exists", None)


class _Notes:
    """The names in one folder: those that were written up to now, and those behind the restored boundary."""

    def __init__(self) -> None:
        self.restored: int | None = None  # at a first start: nothing is behind a boundary
        self.written: list[str] = []
        self.behind: list[str] = []

    def open(self, files: Any, path: str, trainer: Any) -> None:
        self._files, self._path, self._writes = files, path, trainer.is_global_zero
        known: list[str] = []
        if self.restored is not None and self._writes and files.exists(path):
            with files.open(path, "r") as notes:
                known = notes.read().splitlines()
        known = trainer.strategy.broadcast(known)
        self.written, self.behind = known[: self.restored], known[self.restored :]

    def add(self, name: str) -> None:
        self.written.append(name)
        self.behind = [each for each in self.behind if each != name]
        if self._writes:
            self._files.makedirs(os.path.dirname(self._path), exist_ok=True)
            with self._files.open(self._path, "w") as notes:
                notes.write("\n".join([*self.written, *self.behind]))


def _asking(exists: Any, folder: str, notes: _Notes) -> Any:
    def file_exists(path: Any, trainer: Any) -> bool:
        name = os.path.relpath(path, folder)
        if exists(path, trainer) and name not in notes.behind:
            return True
        notes.add(name)  # before Lightning writes it, which it does now: a kill may leave a part of it
        return False

    return file_exists


def collected(trainer: Any) -> dict[str, Any]:
    """Return the entries of the running training epoch, and of the states of the module's metrics."""
    connector = trainer._logger_connector
    return {
        "entries": {
            key: _entry(each)
            for key, each in trainer.fit_loop.epoch_loop._results.items()
            # A process group cannot be in a checkpoint: such a mean begins anew.
            if each.meta.sync.group is None
        },
        "metrics": {name: _states(each) for name, each in metrics(trainer.lightning_module).items()},
        "connector": {name: getattr(connector, name) for name in _CONNECTOR},
        "shown": {name: dict(getattr(connector, name)) for name in _SHOWN},
    }


def put_back(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Make the entries anew, and set the states of the metrics."""
    module, connector = trainer.lightning_module, trainer._logger_connector
    for name, metric in metrics(module).items():
        _set(metric, saved["metrics"].get(name, {}), module.device)
    results = trainer.fit_loop.epoch_loop._results
    for key, entry in saved["entries"].items():
        results[key] = _made(trainer, results, entry)
    for name, value in saved["connector"].items():
        setattr(connector, name, value)
    for name, values in saved["shown"].items():
        getattr(connector, name).update(values)


def _entry(metric: Any) -> dict[str, Any]:
    meta = metric.meta
    values = {name: getattr(metric, name) for name in _VALUES if hasattr(metric, name)}
    if not metric.is_tensor:
        del values["value"]  # the module's own metric
    return {
        "arguments": {name: getattr(meta, name) for name in _ARGUMENTS},
        "reduce": meta.reduce_fx.__name__,
        "builtin": meta.reduce_fx in (max, min, sum),
        "sync": meta.sync.should,
        "rank_zero_only": meta.sync.rank_zero_only,
        "tensor": metric.is_tensor,
        "values": values,
    }


def _made(trainer: Any, results: Any, entry: Mapping[str, Any]) -> Any:
    """An entry as `_ResultCollection.log` makes it."""
    result = importlib.import_module(type(results).__module__)
    # Lightning compares the function with that of the next call: `max` is not `torch.max`.
    reduce = getattr(builtins, entry["reduce"]) if entry["builtin"] else entry["reduce"]
    meta = result._Metadata(**entry["arguments"], reduce_fx=reduce)
    meta.sync = result._Sync(
        _should=entry["sync"], fn=trainer.strategy.reduce, rank_zero_only=entry["rank_zero_only"]
    )
    metric = result._ResultMetric(meta, entry["tensor"])
    if not entry["tensor"]:
        metric.value = operator.attrgetter(entry["arguments"]["metric_attribute"])(trainer.lightning_module)
    metric.to(trainer.lightning_module.device)
    for name, value in entry["values"].items():
        setattr(metric, name, _on(value, trainer.lightning_module.device))
    return metric


def metrics(module: torch.nn.Module) -> dict[str, Any]:
    """Return the metrics of torchmetrics within a module, by name."""
    from torchmetrics import Metric

    return {name: each for name, each in module.named_modules() if isinstance(each, Metric)}


def _states(metric: Any) -> dict[str, Any]:
    names = [*metric._defaults, "_update_count", "_forward_cache"]
    if type(metric).__module__.startswith(
        "torchmetrics.wrappers."
    ):  # they count and compare in plain attributes
        names += [
            name for name, value in vars(metric).items() if isinstance(value, (int, float, torch.Tensor))
        ]
    return {name: getattr(metric, name) for name in names if _is_plain(getattr(metric, name))}


def _set(metric: Any, states: Mapping[str, Any], device: Any) -> None:
    for name, value in states.items():
        setattr(metric, name, _on(value, device))
    metric._computed = None


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold the value; a metric may keep the last value as an object of its own."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, (int, float, str, torch.Tensor))


def _on(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on(each, device) for key, each in value.items()}
    return type(value)(_on(each, device) for each in value) if isinstance(value, (list, tuple)) else value
