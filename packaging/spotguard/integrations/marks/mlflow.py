"""Marks in MLflow: `spotguard.integrations.mlflow.mark(guard)`."""

from __future__ import annotations

from typing import Any

from spotguard.providers.errors import UsageError

from .mark import TrackerMark
from .tracker import follow

__all__ = ["mark"]

_RECORD, _NOTE = "spotguard.preempted.record", "spotguard.note"
#: Characters of a tag's value that every store of MLflow takes.
_LONGEST = 5000


def mark(guard: Any, run_id: str | None = None, client: Any = None) -> None:
    """Mark this run's preemptions, resumes and checkpoints in MLflow.

    Args:
        guard: the guard that `spotguard.register` returned, or an adapter's object that has it.
        run_id: MLflow's run id. Default: the run that `mlflow.start_run` began.
        client: the MlflowClient. Default: one for the present tracking URI.

    Raises:
        UsageError: no run has begun.

    Example:
        >>> guard = spotguard.register(model=model, optimizer=optimizer)
        >>> mlflow.start_run(run_id=os.environ["MLFLOW_RUN_ID"])
        >>> spotguard.integrations.mlflow.mark(guard)
    """
    if run_id is None or client is None:
        import mlflow

        active = mlflow.active_run()
        run_id = run_id or (active and active.info.run_id)
        client = client or mlflow.MlflowClient()
    if run_id is None:
        raise UsageError("mlflow.mark() found no run: call mlflow.start_run() before it, or pass its run id")
    follow(guard, _MlflowRun(run_id, client))


class _MlflowRun:
    #: Each note is a request to a server.
    every = 30.0

    def __init__(self, run_id: str, client: Any) -> None:
        self._run_id, self._client = run_id, client
        self.place = f"MLflow run {run_id}"

    def add(self, mark: TrackerMark) -> None:
        from mlflow.entities import Metric, RunTag

        at = int(mark.at * 1000)
        numbers = [Metric(name, float(value), at, mark.step) for name, value in mark.numbers.items()]
        tags = []
        if mark.text:
            tags.append(RunTag(f"spotguard.{mark.kind}", mark.text[:_LONGEST]))
        if mark.record:
            tags.append(RunTag(_RECORD, mark.record))
        self._client.log_batch(self._run_id, metrics=numbers, tags=tags)

    def flush(self, *, leaving: bool) -> None:
        """Each mark is a request of its own, and is through."""

    def marked(self, run_id: str) -> int:
        number = self._tag(_RECORD).rpartition("/")[2]
        return int(number) if number.isdigit() else 0

    def read_note(self) -> str:
        return self._tag(_NOTE)

    def write_note(self, note: str) -> None:
        self._client.set_tag(self._run_id, _NOTE, note)

    def _tag(self, name: str) -> str:
        return str(self._client.get_run(self._run_id).data.tags.get(name, ""))
