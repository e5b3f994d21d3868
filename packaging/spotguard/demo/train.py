"""Train a small GPT on Python's own sources, character by character.

The lines with `guard` in them are all that spotguard asks of a script. `--plain` leaves them out.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor

import spotguard
from spotguard.demo import data
from spotguard.demo.model import GPT

BATCH = 12
EVALUATE_EVERY = 100


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # another number of threads adds in another order
    torch.manual_seed(1234)

    numbers = torch.tensor(data.encode(data.text()), dtype=torch.uint8)
    train, held_out = numbers.tensor_split([len(numbers) * 9 // 10])
    model = GPT(len(data.ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=args.steps)

    guard = None if args.plain else spotguard.register(model=model, optimizer=optimizer, scheduler=scheduler)
    done = guard.restore() if guard else 0

    with args.log.open("a", buffering=1) as log:
        print(json.dumps({"event": "start", "pid": os.getpid(), "step": done}), file=log)
        for step in range(done, args.steps):
            record: dict[str, float] = {"step": step + 1}
            if step % EVALUATE_EVERY == 0:
                record["held_out"] = evaluate(model, held_out)

            loss = model(*batch(train, model.context))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            print(json.dumps(record | {"loss": loss.item()}), file=log)
            if guard:
                guard.step()

    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        },
        args.out,
    )


def batch(numbers: Tensor, context: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Return random pieces of the text, and the same pieces one character later."""
    starts = torch.randint(len(numbers) - context, (BATCH, 1), generator=generator)
    pieces = numbers[starts + torch.arange(context + 1)].long()
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def evaluate(model: GPT, numbers: Tensor) -> float:
    """Return the loss on text that is never trained on, always on the same pieces."""
    model.eval()
    generator = torch.Generator().manual_seed(1)
    losses = [model(*batch(numbers, model.context, generator)) for _ in range(4)]
    model.train()
    return torch.stack(losses).mean().item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--log", type=Path, default=Path("losses.jsonl"), help="one JSON line for each step")
    parser.add_argument(
        "--out", type=Path, default=Path("final.pt"), help="the weights, when training is done"
    )
    parser.add_argument("--plain", action="store_true", help="without spotguard")
    return parser.parse_args()


if __name__ == "__main__":
    main()
