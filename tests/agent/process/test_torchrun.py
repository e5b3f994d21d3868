"""Which commands are torchrun, and what it is told."""

from __future__ import annotations

import pytest

from spotguard.agent.process import torchrun
from spotguard.agent.process.torchrun import SHUTDOWN_TIMEOUT, UNSHARED, is_torchrun, moved, static_on, told


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2:4 train.py",
        "/opt/venv/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python3.11 -u -m torch.distributed.launch train.py",
        "python -mtorch.distributed.run train.py",
        "numactl --interleave=all torchrun train.py",
        "env NCCL_DEBUG=INFO torchrun train.py",
        "accelerate launch --num_processes 8 train.py",
        "python -m accelerate.commands.launch train.py",
    ],
)
def test_torchrun_is_known_by_its_words(command: str) -> None:
    assert is_torchrun(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python -m torch.distributed.elastic",
        "python torchrun.py",
        "sh train-with-torchrun.sh",
        "python -m",
        "accelerate config",
    ],
)
def test_nothing_else_is_torchrun(command: str) -> None:
    assert not is_torchrun(command.split())


@pytest.mark.parametrize(("window", "seconds"), [(None, "660"), (30.0, "660"), (3600.0, "3660")])
def test_torchrun_waits_for_its_workers_longer_than_any_save(window: float | None, seconds: str) -> None:
    """Also for those of a machine that stays, which may save on for ten minutes."""
    assert told(["torchrun", "train.py"], window, {})[SHUTDOWN_TIMEOUT] == seconds


def test_the_workers_store_is_not_that_of_the_rendezvous() -> None:
    """It would still have the addresses of those that are gone."""
    assert told(["torchrun", "train.py"], None, {})[UNSHARED] == "1"


def test_torchrun_settings_of_the_user_stay() -> None:
    assert told(["torchrun", "train.py"], None, {SHUTDOWN_TIMEOUT: "30", UNSHARED: "0"}) == {}
    assert told(["python", "train.py"], None, {}) == {}


GONE = frozenset({"node1", "node1.example.org", "10.0.0.1", "fd00::1"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--rdzv-endpoint node1:29400", "--rdzv-endpoint node2:29400"),
        ("--rdzv-endpoint=Node1.example.org:29400", "--rdzv-endpoint=node2:29400"),
        ("--rdzv_endpoint 10.0.0.1", "--rdzv_endpoint node2"),
        ("--rdzv_endpoint=[fd00::1]:29400", "--rdzv_endpoint=node2:29400"),
        ("--rdzv_endpoint=[fd00::1]", "--rdzv_endpoint=node2"),
        ("--rdzv-e node1:29400", "--rdzv-e node2:29400"),
        ("--rdzv_end=node1:29400", "--rdzv_end=node2:29400"),
        (
            "--rdzv-endpoint node1:1 --rdzv-endpoint=node1:2",
            "--rdzv-endpoint node2:1 --rdzv-endpoint=node2:2",
        ),
        ("--rdzv-id node1", "--rdzv-id node1"),
        ("--rdzv-endpoint head:29400", "--rdzv-endpoint head:29400"),
        ("--rdzv-endpoint", "--rdzv-endpoint"),
        ("", ""),
    ],
)
def test_a_rendezvous_on_the_machine_that_goes_is_moved(before: str, after: str) -> None:
    """To a machine that stays, with the same port; one that is elsewhere stays where it is."""
    command = f"torchrun --nnodes 2:4 {before}".split()
    assert moved(command, {}, GONE, "node2") == (f"torchrun --nnodes 2:4 {after}".split(), {})


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --rdzv-endpoint head:1 train.py --rdzv-endpoint node1:1",
        "torchrun train.py --rdzv-endpoint node1:1",
        "torchrun -m pkg.train --rdzv-endpoint=node1:1",
        "torchrun --standalone -- train --rdzv-endpoint=node1:1",
        "train --rdzv-endpoint node1:1",
    ],
)
def test_an_option_of_the_script_is_not_touched(command: str) -> None:
    """Nor what is no torchrun."""
    assert moved(command.split(), {}, GONE, "node2") == (command.split(), {})


def test_a_rendezvous_in_the_environment_is_moved_too() -> None:
    """torchrun reads it there if it is not in the command."""
    command, env = ["torchrun", "train.py"], {"PET_RDZV_ENDPOINT": "node1:29400", "OTHER": "node1"}
    assert moved(command, env, GONE, "node2") == (command, {**env, "PET_RDZV_ENDPOINT": "node2:29400"})
    assert moved(["train"], env, GONE, "node2") == (["train"], env)


@pytest.mark.parametrize(
    ("options", "backend", "host"),
    [
        ("--master-addr node1 --master-port 1", "", "node1"),
        ("--master_a=10.0.0.1", "static", "10.0.0.1"),
        ("--rdzv-endpoint node1:1 --node-rank 1", "", "node1:1"),
        ("--main_process_ip node1 --machine_rank 1", "", "node1"),
        ("--master-addr head --rdzv-endpoint head:1 --node-rank 1", "", ""),
        ("--rdzv-backend c10d --master-addr node1 --node-rank 1", "", ""),
        ("--master-addr node1", "c10d", ""),
        ("--nnodes 2 train.py --master-addr node1", "", ""),
    ],
)
def test_a_static_rendezvous_on_the_machine_that_goes_is_told_and_not_moved(
    options: str, backend: str, host: str
) -> None:
    """No machine that stays has its node rank, so a moved one would have no host."""
    command, env = ["torchrun", *options.split()], {"PET_RDZV_BACKEND": backend}
    assert static_on(command, env, GONE) == host
    assert not host or moved(command, env, GONE, "node2") == (command, env)
    assert static_on(["torchrun", "--nnodes=2"], {"PET_MASTER_ADDR": "node1"}, GONE) == "node1"


def test_an_address_of_the_new_kind_is_put_into_brackets() -> None:
    assert (
        moved(["torchrun", "--rdzv-endpoint=node1:1"], {}, GONE, "fd00::2")[0][1]
        == "--rdzv-endpoint=[fd00::2]:1"
    )


@pytest.mark.parametrize(
    ("command", "variable", "restarts"),
    [
        ("torchrun --max-restarts=3 train.py", "", True),
        ("torchrun --max_restarts 3 train.py", "", True),
        ("torchrun --max-rest 3 train.py", "", True),
        ("python -m torch.distributed.run --max-restarts 1 -m pkg.train", "", True),
        ("python -u -m torch.distributed.run --max-restarts 1 train.py", "", True),
        ("env A=1 python -m torch.distributed.run --max-restarts=1 train.py", "", True),
        ("accelerate launch --max_restarts 1 train.py", "", True),
        ("torchrun --max-restarts 0 train.py", "", False),
        ("torchrun train.py", "", False),
        ("torchrun train.py", "2", True),
        ("torchrun --max-restarts 0 train.py", "2", False),
        ("torchrun train.py --max-restarts 3", "", False),
        ("torchrun -m pkg.train --max-restarts 3", "", False),
        ("torchrun -mpkg.train --max-restarts 3", "", False),
        ("python train.py --max-restarts 3", "", False),
        ("torchrun --nproc-per-node 2 train --max-restarts 3", "", False),
        ("torchrun --standalone train --max-restarts 3", "", False),
        ("torchrun --nproc-per-node 2 -- train --max-restarts 3", "", False),
        ("torchrun --max-restarts 1 --nproc_per_node=2 train --max-restarts 0", "", True),
        ("accelerate launch --multi_gpu --max_restarts 1 train.py", "", True),
        ("accelerate launch --multi_gpu train.py --max_restarts 1", "", False),
    ],
)
def test_whether_torchrun_starts_workers_again(command: str, variable: str, restarts: bool) -> None:
    env = {"PET_MAX_RESTARTS": variable} if variable else {}
    assert torchrun.restarts(command.split(), env) is restarts
