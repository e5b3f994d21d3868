"""Ray Train on a cluster of one machine: `ray_train.py OUT CASE [STORE [EVENT…]]`; events: `drain:N`, `kill:N`, `notice:N`.

The head has no CPUs, and each node has two, so both workers run on one node. `drain:N`: the first worker has Ray drain its node,
and a second node is free. `notice:N`: it writes the notice file of its node's agent, and a second node comes.
`OUT.lives` has a line for each start of a worker: rank, completed steps, node.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer, prepare_model
from torch import distributed, nn

STEPS = 120
BIN = Path(sys.executable).parent
DRAIN = (
    "drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot --deadline-remaining-seconds 60"
)


def loop(config: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(config["program"]).parent))
    from events import Ends

    out, store = config["out"], config["store"]
    rank, world = distributed.get_rank(), distributed.get_world_size()
    ends = Ends(config["events"] if rank == 0 else [], Path(f"{out}.met"))
    here = ray.get_runtime_context().get_node_id()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = prepare_model(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: dict[int, float] = {}

    def train(step: int) -> None:
        if ends.meets(f"drain:{step}"):
            address = ray.get_runtime_context().gcs_address
            words = [BIN / "ray", *DRAIN.split(), "--address", address, "--node-id", here]
            subprocess.run(words, check=True)
        if ends.meets(f"notice:{step}"):
            Path(f"{out}.notice").write_text("terminate 60")
        if ends.meets(f"kill:{step}"):
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))[rank::world]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()

    if store is None:
        for step in range(STEPS):
            train(step)
    else:
        from spotguard.integrations.ray import register

        with register(store, model=model, optimizer=optimizer) as guard:
            for step in guard.steps(STEPS):
                if not losses:
                    with Path(f"{out}.lives").open("a") as lives:
                        lives.write(f"{rank} {step} {here}\n")
                train(step)
                time.sleep(0.05)  # so that Ray's watcher sees the drain before the end
    torch.save(
        {
            "weights": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "last": losses[STEPS - 1],
        },
        f"{out}{rank or ''}",
    )


def node(address: str, **env: str) -> subprocess.Popen[bytes]:
    words = [str(BIN / "ray"), "start", "--address", address, "--num-cpus", "2", "--block"]
    words += ["--object-store-memory", "100000000"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | env)


def agent(out: Path, beside: int) -> subprocess.Popen[bytes]:
    """Start a node's agent as the page does; its notice is a file."""
    words = [str(BIN / "spotguard"), "agent", "--provider", "none", "--notice-file", f"{out}.notice"]
    words += ["--on-notice", f"kill {beside}", "--socket", f"{out}.socket"]
    with Path(f"{out}.agent").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


def replace(started: list[subprocess.Popen[bytes]], out: Path, address: str) -> None:
    """Add a second node once the first one got its notice."""
    while not Path(f"{out}.notice").exists():
        time.sleep(0.1)
    started.append(node(address))


def main() -> None:
    out, case, store = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    if case == "outside":
        from spotguard.integrations.ray import register

        with register(out.parent, model=nn.Linear(1, 1)):
            return
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    started: list[subprocess.Popen[bytes]] = []
    try:
        if case == "agent":
            started.append(node(cluster.address, SPOTGUARD_SOCKET=f"{out}.socket"))
            started.append(agent(out, beside=started[0].pid))
            threading.Thread(target=replace, args=(started, out, cluster.address), daemon=True).start()
        else:
            for _ in range(2):
                cluster.add_node(num_cpus=2)
        ray.init(cluster.address, log_to_driver=False)
        TorchTrainer(
            loop,
            train_loop_config={"out": str(out), "store": store, "events": sys.argv[4:], "program": __file__},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(
                name="ray-train",
                storage_path=str(out.parent / f"{out.name}-ray"),
                failure_config=ray.train.FailureConfig(max_failures=int(case == "kill")),
            ),
        ).fit()
    finally:
        ray.shutdown()
        for each in started:
            each.terminate()
            each.wait()
        cluster.shutdown()


if __name__ == "__main__":
    main()
