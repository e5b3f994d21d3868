"""The trace of one turn: its batches, forwards, losses, optimizer steps, evaluations and saves, in order.

A turn is the time between two boundaries. The trace uses torch's global hooks. It wraps `torch.autograd.backward`, `torch.save`
and the loaders, because they have no hooks. It records only the training thread.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks_of_modules
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ..state.device.cuda_graphs import capturing
from . import checksums
from .plan import Place

#: An entry of the trace: the event, the object it belongs to, its checksum or value, and the generators' states after it.
Entry = tuple[str, str, str, dict[str, str]]

#: Entries kept of one turn. A turn of thousands of micro-batches is not recorded in full.
_MOST = 400


class Trace:
    """The trace of the current turn.

    Args:
        passing: called at each place of the turn where an action may be due.
        opening: called once a turn, before its first training forward.
        stepped: called after each optimizer step.
    """

    def __init__(
        self,
        passing: Callable[[Place], None],
        opening: Callable[[], None],
        stepped: Callable[[Optimizer], None],
    ) -> None:
        self._passing = passing
        self._opening = opening
        self._stepped = stepped
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._depth = 0
        self._opened = False
        self._entries: list[Entry] = []
        #: Number of loader iterators that existed before the restore.
        self.early = 0

    def begin(self) -> None:
        """Install the hooks. They stay until the process ends."""
        hooks_of_modules.register_module_forward_pre_hook(_uncompiled(self._before_forward))
        hooks_of_modules.register_module_forward_hook(_uncompiled(self._after_forward), always_call=True)
        register_optimizer_step_pre_hook(_uncompiled(self._before_step))
        register_optimizer_step_post_hook(_uncompiled(self._after_step))
        self._wrap(torch.autograd, "backward", self._backward)
        self._wrap(torch, "save", self._save)
        if "safetensors.torch" in sys.modules:
            self._wrap(sys.modules["safetensors.torch"], "save_file", self._save)
        self._wrap(dataloader.DataLoader, "__iter__", self._iterate)
        self._wrap(dataloader._BaseDataLoaderIter, "__next__", self._fetch)
        stateful = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
        if stateful is not None:
            self._wrap(stateful.StatefulDataLoader, "__iter__", self._iterate)

    def turn(self) -> list[Entry]:
        """Return the entries since the last call. Called at a boundary."""
        ended, self._entries, self._opened = self._entries, [], False
        return ended

    def restored(self) -> None:
        """Begin the first turn after a restore. Earlier entries belong to no turn and are dropped."""
        self._thread = threading.get_ident()
        self.early = sum(issubclass(type(each), dataloader._BaseDataLoaderIter) for each in gc.get_objects())
        self.turn()

    def saved_by_hand(self) -> None:
        """Note a `guard.save()`, whose checkpoint is of a boundary, with what the script has changed since."""
        self._note("guard.save()")
        self._passing("guard.save()")

    def _note(self, what: str, whose: str = "", value: str = "") -> None:
        if len(self._entries) < _MOST:
            self._entries.append((what, whose, value, checksums.of_generators()))

    def _here(self) -> bool:
        """Report whether this is the training thread, and not at the capture of a CUDA graph, where no value can be read.

        The pid counts too: a forked worker has the same thread id.
        """
        return threading.get_ident() == self._thread and os.getpid() == self._pid and not capturing()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs) if self._here() else original(*args, **kwargs)

        setattr(owner, name, wrapped)

    # --- torch's hooks ---

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._here():
            return
        self._depth += 1
        if self._depth > 1:
            return
        if not (torch.is_grad_enabled() and module.training):
            self._note("evaluation", type(module).__name__)
            self._passing("evaluation")
            return
        if not self._opened:
            self._opened = True
            self._opening()
        # torch passes no keyword arguments to a global hook, so they are read from the frame of its caller.
        named = sys._getframe(2).f_locals.get("kwargs", {})
        given = [*args, *(named[key] for key in sorted(named))] if isinstance(named, dict) else [*args]
        self._note("input", type(module).__name__, checksums.of_any(given))
        self._passing("forward")

    def _after_forward(self, module: nn.Module, args: Any, result: Any) -> None:
        if self._here():
            self._depth = max(0, self._depth - 1)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._here():
            self._passing("optimizer")

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._here():
            self._note("step", str(id(optimizer)))
            self._stepped(optimizer)
            self._passing("after optimizer")

    # --- wrapped functions ---

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        roots = args[0] if args else kwargs.get("tensors")
        self._note("loss", "", checksums.of_any(roots))
        return original(*args, **kwargs)

    def _save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._note("save")
        self._passing("save")
        return original(*args, **kwargs)

    def _iterate(self, original: Callable[..., Any], loader: Any, *args: Any) -> Any:
        before = checksums.of_generators()
        made = original(loader, *args)
        drawn = [name for name, state in checksums.of_generators().items() if before.get(name) != state]
        stay = " that stay" if loader.persistent_workers else ""
        workers = f" with {loader.num_workers} workers{stay}" if loader.num_workers else ""
        self._note("iterator", type(loader).__name__ + workers, ", ".join(drawn))
        return made

    def _fetch(self, original: Callable[..., Any], iterator: Any) -> Any:
        try:
            batch = original(iterator)
        except StopIteration:
            self._note("epoch end")
            self._passing("epoch end")
            raise
        self._note("batch", "", checksums.of_any(batch))
        return batch


def _uncompiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook marked so that TorchDynamo skips it, as `torch.compiler.disable` would.

    That function would load the compiler even if nothing else needs it, which takes 1.2 s.
    """

    def called(*args: Any) -> None:
        hook(*args)

    called._torchdynamo_disable = True  # type: ignore[attr-defined]
    return called
