"""A training with marks in a tracker: `marked.py OUT CASE [STORE [EVENT…]]`.

CASE is a tracker, or two words: `tensorboard-hangs` is one that blocks in every write of the first life, and `-raises` one that
raises there. `lightning` and `transformers` are trainings of `trainers.py`.
Events: `step:7` is a notice when step 7 begins, `term:7` a SIGTERM to `spotguard run`, which is the parent, and `kill:12` is
SIGKILL, after the time that a tracker takes to reach its disk.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
}

import torch
from torch import nn

import spotguard
from spotguard.integrations.marks import mlflow as mlflow_marks
from spotguard.integrations.marks import tensorboard as tensorboard_marks
from spotguard.integrations.marks import wandb as wandb_marks

sys.path.insert(0, str(Path(__file__).parent))
from events import Ends

torch.set_num_threads(1)
TOTAL, SAVED = 15, 10


class Marked:
    """A training of this life's words."""

    def __init__(self) -> None:
        out, self.case = Path(sys.argv[1]), sys.argv[2]
        self.tracker, _, self.failure = self.case.partition("-")
        self.data = Path(f"{out}-{self.tracker}")
        self.store = sys.argv[3] if len(sys.argv) > 3 else None
        self.ends = Ends(sys.argv[4:], Path(f"{out}.met"))
        self.fails = bool(self.failure) and not self.data.exists()

    def fail(self, *given: Any, **more: Any) -> None:
        if self.failure == "raises":
            raise ConnectionError("the tracker is down")
        threading.Event().wait()  # for ever

    def tensorboard(self, guard: Any, done: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(self.data, purge_step=done)
        if self.fails:
            SummaryWriter.flush = self.fail  # type: ignore[method-assign]
        if guard:
            tensorboard_marks.mark(guard, writer)
        return lambda step, loss: writer.add_scalar("loss", loss, step)

    def wandb(self, guard: Any, done: int) -> Any:
        import wandb

        self.data.mkdir(exist_ok=True)
        run = wandb.init(project="marks", id="marked", resume="allow", dir=self.data)
        if guard:
            wandb_marks.mark(guard)
        log = run.log
        if self.fails:
            object.__setattr__(run, "log", lambda row, **more: self.fail())
        return lambda step, loss: log({"loss": loss}, step=step)

    def mlflow(self, guard: Any, done: int) -> Any:
        import mlflow

        self.data.mkdir(exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{self.data}/tracking.db")
        known = self.data / "run-id"
        run = mlflow.start_run(run_id=known.read_text() if known.exists() else None)
        known.write_text(run.info.run_id)
        if self.fails:
            mlflow.MlflowClient.log_batch = self.fail
        mlflow_marks._MlflowRun.every = 1.0
        if guard:
            mlflow_marks.mark(guard)
        return lambda step, loss: mlflow.log_metric("loss", loss, step=step)

    def loop(self) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        guard = (
            spotguard.register(self.store, run_id="marked", model=model, optimizer=optimizer)
            if self.store
            else None
        )
        done = guard.restore() if guard else 0
        log = getattr(self, self.tracker)(guard, done)
        for step in range(done, TOTAL):
            if guard and self.ends.meets(f"step:{step}"):
                spotguard.testing.preempt(guard, seconds=60)
            if self.ends.meets(f"term:{step}"):
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(5)  # the agent's notice comes, and the save begins in the middle of this
            if self.ends.meets(f"kill:{step}"):
                time.sleep(20 if self.tracker == "wandb" else 3)
                os.kill(os.getpid(), signal.SIGKILL)
            x = torch.randn(4, 8)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            log(step, loss.item())
            if guard:
                guard.step()
                if step + 1 == SAVED:
                    guard.save()
        return {"weights": model.state_dict(), "moments": optimizer.state_dict()}


def main() -> None:
    marked = Marked()
    if marked.case in ("lightning", "transformers"):
        import trainers

        trained = trainers.TRAIN[marked.case](marked.data, marked.ends, marked.store)
    else:
        trained = marked.loop()
    torch.save(trained, sys.argv[1])


if __name__ == "__main__":
    main()
