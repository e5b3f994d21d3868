"""Ray Train: `with spotguard.integrations.ray.register(…) as guard`, in the function that each worker runs.

Ray Train runs that function in a thread, ends the worker's process without its exit handlers, and starts the group of workers
again by rules of its own. So this adapter does three things that `spotguard.register` leaves to a process:

- It saves when Ray announces that a node of the group is preempted, as at an agent's notice.
- It turns `Preempted` into Ray's own error for that. Ray then restarts the group at once, at the cost of no `max_failures`.
- It closes the guard at the end of the block, so that no upload is cut off.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import ray.train
from ray.exceptions import RayActorError
from ray.train.v2._internal.execution.context import get_train_context

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.register import register as register_state
from spotguard.providers.errors import UsageError

if TYPE_CHECKING:
    from spotguard.hooks.guard import Guard

__all__ = ["register"]

#: Seconds between two looks at what Ray has told this worker. Ray's own watcher asks every 5 s.
_LOOK = 0.5
#: Seconds to wait, after an agent's notice, for Ray to learn that this node goes: until then it would restart the group here.
#: `ray drain-node` takes some seconds, and Ray's watcher up to 5.
_ANNOUNCED = 20.0
#: Seconds until a node goes whose drain has no deadline, as Ray Train itself assumes (`DEFAULT_PREEMPTION_DEADLINE_S`).
_NO_DEADLINE = 120.0


@contextmanager
def register(
    store: str | PathLike[str] | None = None, /, *, run_id: str | None = None, **state: Any
) -> Iterator[Guard]:
    """Register the state of this worker, and guard the block.

    Every worker calls it with the same names, after `prepare_model`.

    Args:
        store: place of the checkpoints, which all nodes reach. Default: SPOTGUARD_STORE.
        run_id: name of the run. Default: the name in Ray's `RunConfig`.
        **state: the parts of the training state, as `spotguard.register` takes them.

    Yields:
        The guard of this worker.

    Raises:
        UsageError: there is no store, or this is no worker of Ray Train's V2.
        RayActorError: the state is committed, and the node is preempted. Ray restarts the group.

    Example:
        >>> def train_loop_per_worker(config):
        ...     model = ray.train.torch.prepare_model(make_model())
        ...     optimizer = torch.optim.AdamW(model.parameters())
        ...     with spotguard.integrations.ray.register("s3://bucket/runs", model=model, optimizer=optimizer) as guard:
        ...         for step in guard.steps(10_000):
        ...             train_one_step(step)
        ...         guard.save()
    """
    worker = _worker()
    if store is None and not os.environ.get("SPOTGUARD_STORE"):
        raise UsageError(
            "register() got no store, and the working directory of a Ray worker is its node's own: pass a place that all "
            "nodes reach, as in register('s3://bucket/prefix', model=model)"
        )
    # Never from the environment: below `ray start`, that name is the agent's, and a worker's command line has its ports.
    name = run_id or ray.train.get_context().get_experiment_name()
    guard = register_state(store, run_id=name, **state)
    watch = _PreemptionWatch(worker, guard)
    watch.start()
    try:
        yield guard
    except Preempted:
        watch.leave()
        raise RayActorError(
            error_msg="spotguard: the state is committed, and this worker leaves", preempted=True
        ) from None
    finally:
        watch.over.set()
        guard.close()


class _PreemptionWatch(threading.Thread):
    """The thread that gives the guard a notice once Ray announces a preemption.

    `ray.train.get_preemption_info` is not used: it waits for all workers, in the order of Ray's other collectives.
    """

    def __init__(self, worker: Any, guard: Guard) -> None:
        super().__init__(name="spotguard-ray", daemon=True)
        self._worker, self._guard = worker, guard
        self._leaving, self._announced = False, threading.Event()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_LOOK):
            if (info := self._worker.preemption_context.preemption_info) is not None:
                self._announced.set()
                if not self._leaving:
                    left = _NO_DEADLINE if info.deadline_ms is None else info.deadline_ms / 1000 - time.time()
                    self._guard.preempt(max(left, 1.0))
                return

    def leave(self) -> None:
        """Wait until Ray knows that this node goes."""
        self._leaving = True
        self._announced.wait(_ANNOUNCED)


def _worker() -> Any:
    """Return Ray Train's context of this worker.

    Raises:
        UsageError: this is no worker, or Ray keeps the announcement elsewhere.
    """
    try:
        worker = get_train_context()
    except RuntimeError as error:
        raise UsageError(
            f"register() was called outside a worker of Ray Train V2 ({error}): call it in train_loop_per_worker"
        ) from None
    if not hasattr(getattr(worker, "preemption_context", None), "preemption_info"):
        raise UsageError(
            f"ray {importlib.metadata.version('ray')} keeps a preemption where spotguard does not look: use a version that "
            "docs/how-to/frameworks/ray.md lists as tested [SG418]"
        )
    return worker
