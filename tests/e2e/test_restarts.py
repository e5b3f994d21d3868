"""Ranks that fail below torchrun, which starts all of them again: each life of the job hears nothing of the one before."""

from __future__ import annotations

import random
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running, eventually

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

FAILING = str(Path(__file__).parent / "programs" / "failing.py")
#: Which store a worker is given: one that torchrun keeps from life to life, as it does of itself and as `run` has it not do;
#: or one that its first worker makes anew.
STORES = {
    "static": ("--nnodes=1 --node-rank=0 --master-addr=127.0.0.1 --master-port={port}", "1"),
    "shared": ("--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0", "0"),
    "anew": ("--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0", "1"),
}


def begin(machine: Machine, store: str, fates: list[str]) -> Running:
    words, unshared = STORES[store]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--monitor-interval=0.1"]
    return machine.run(
        "--every off --window 20",
        *(*torchrun, f"--max-restarts={len(fates)}", *words.format(port=port).split(), FAILING, *fates),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=unshared,
    )


def lives_on(running: Running, fates: list[str], *, stale: bool) -> int:
    """Every life goes on from what the one before has saved, and knows nothing else of it. The step at which the last one
    stands."""
    step = 0
    for life in range(len(fates) + 1):
        steps = {int(running.out.until(rf"^rank \d life {life} restored (\d+)$")[1]) for _ in range(2)}
        assert len(steps) == 1
        noticed = life and fates[life - 1].startswith("noticed")
        assert steps <= (set(range(step, step + 50)) if noticed else {step})
        step = steps.pop() + 2
    for _ in range(2):
        running.out.until(rf"^rank \d life {len(fates)} stands$")
    said = re.findall(r"^rank \d life (\d) is (\w+), heard (\d+) calls, knows (\d+)$", running.out.text, re.M)
    assert len({(life, incarnation) for life, incarnation, _, _ in said}) == len(fates) + 1
    assert len({incarnation for _, incarnation, _, _ in said}) == len(fates) + 1
    assert {heard for _, _, heard, _ in said} == {"0"}
    assert [int(knows) > 0 for _, _, _, knows in said] == [stale and life != "0" for life, _, _, _ in said]
    return step


def saves_and_ends(machine: Machine, running: Running, step: int) -> None:
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["step"], outcome["why"], outcome["code"]) == (step, "", 75)
    eventually(lambda: not list(machine._mine()), "processes were left behind")
    said = running.err.to_the_end()
    assert "terminate called" not in said
    assert "Signal 6" not in said


def test_two_lives_fail_and_the_third_one_saves_on_a_notice(machine: Machine) -> None:
    """With a static rendezvous, whose store outlives them all, and still holds the calls of the lives before."""
    fates = ["killed:0", "raises:1"]
    running = begin(machine, "static", fates)
    saves_and_ends(machine, running, lives_on(running, fates, stale=True))


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("seed", range(8), ids="seed-{}".format)
def test_lives_fail_in_any_way_on_any_store(machine: Machine, store: str, seed: int) -> None:
    dice = random.Random(seed)
    hows = ["exits", "raises", "killed", "noticed"]
    fates = [f"{dice.choice(hows)}:{dice.randrange(2)}" for _ in range(2)]
    running = begin(machine, store, fates)
    saves_and_ends(machine, running, lives_on(running, fates, stale=store != "anew"))
