"""The public API, written down for type checkers: never run, checked by `mypy --strict` with everything else."""

from __future__ import annotations

from typing import assert_type

import torch
from torch.distributed.checkpoint.state_dict_loader import load

import spotguard
from spotguard import (
    Guard,
    Notice,
    Preempted,
    ResumableLoader,
    SpotguardError,
    StorageReader,
    on_notice,
    register,
)

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())

# A store and a run id, or what the environment says; any names for the state.
guard = register(model=model, optimizer=optimizer)
assert_type(guard, Guard)
register(
    "file:///mnt/checkpoints", run_id="gpt-small-7", net=model, notes={"best": 0.1}, tensor=torch.ones(3)
)

# The loop, spelled out and in one line.
assert_type(guard.restore(), int)
assert_type(guard.restore(step=1200), int)
assert_type(guard.restore(run_id="another"), int)
assert_type(guard.restore(missing=("ema",)), int)
for _ in range(guard.restore(), 10):
    guard.step()
for step in guard.steps(10):
    assert_type(step, int)

# A save by hand says what was saved.
saved = guard.save()
assert_type(saved.step, int)
assert_type(saved.url, str)
assert_type(saved.nbytes, int)
assert_type(saved.seconds, float)
guard.close()

# Errors, and how training ends.
try:
    guard.step()
except Preempted as ending:
    assert_type(ending.code, str | int | None)
except SpotguardError as error:
    print(error)


# For those who save by themselves: as a decorator, and as a call.
@on_notice
def save(notice: Notice) -> None:
    assert_type(notice.deadline, float)
    assert_type(notice.id, str)


on_notice(lambda notice: print(notice.kind, notice.source))

# A plain loader that continues in the middle of a pass.
loader = ResumableLoader(
    torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2))), limit=3
)
register(model=model, optimizer=optimizer, loader=loader)
for _epoch in range(loader.epoch, 3):
    for number, batch in enumerate(loader, loader.position):
        print(number, batch, len(loader))

# Into any mesh, by torch's own words.
load(
    {"model": model.state_dict()},
    storage_reader=StorageReader("s3://bucket/prefix", "gpt-small-7", step=1200),
)

# For users' own tests.
spotguard.testing.preempt(guard, seconds=30)

# Wrong use is a type error.
register(3)  # type: ignore[arg-type]
register(store="file:///x")  # a state named "store": the URL is positional only
guard.restore(1200)  # type: ignore[call-arg]
on_notice("save")  # type: ignore[arg-type]
