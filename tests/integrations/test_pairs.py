"""For nights: options of each framework in pairs, cut at drawn moments, and trainings that are ended fifty times."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import ALONE, Training, differences

pytestmark = [pytest.mark.torch, pytest.mark.soak, pytest.mark.timeout(3600)]

#: By framework and program: the words of a case, by option; "" is what the program does without one. "two" is two ranks.
OPTIONS: dict[tuple[str, str], list[tuple[str, ...]]] = {
    ("transformers", "hf.py"): [
        ("", "two"),
        ("", "batch", "batches"),
        ("", "loading"),
        ("", "grouped"),
        ("", "plateau"),
        ("", "eval", "epochs", "best", "early"),
        ("", "short"),
        ("", "mixed"),
        ("", "recomputed"),
        ("", "fused", "sgd", "adafactor"),
        ("", "compile"),
        ("", "peft"),
    ],
    ("transformers", "accel.py"): [
        ("", "two"),
        ("seedable", "shuffled", "stateful", "ordered"),
        ("", "batch", "batches"),
        ("", "loading"),
        ("", "mixed"),
        ("", "split", "uneven", "dispatched"),
        ("", "alone"),
    ],
    ("lightning", "pl.py"): [
        ("", "ddp", "fsdp2"),
        ("", "stateful"),
        ("", "workers"),
        ("", "accumulation", "batches"),
        ("", "often"),
        ("", "manual"),
        ("", "plateau", "constant"),
        ("", "steps", "early"),
        ("", "averages"),
        ("", "mixed"),
        ("", "clipped"),
    ],
    ("deepspeed", "ds.py"): [
        ("", "two"),
        ("0", "1", "2", "3"),
        ("fp32", "bf16", "fp16"),
        ("", "manual"),
        ("", "unclipped"),
        ("", "frozen"),
    ],
}


#: Pairs that the framework, or torch on CPUs, does not run without spotguard either.
REFUSED: list[tuple[str, str]] = [
    ("two", "uneven"),  # a rank waits for the other's last batch
    ("manual", "accumulation"),
    ("manual", "batches"),
    ("manual", "clipped"),
    ("manual", "mixed"),
]


def runs(words: Collection[str]) -> bool:
    return not any(set(pair) <= set(words) for pair in REFUSED)


#: Options that make a life ten times longer: a row has one where a pair needs it.
SLOW = ("compile",)

#: Two words of a row, each behind the place of its option.
Pair = tuple[int, str, int, str]


def rows(options: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Rows with a word for each option, until each two words of two options were together in one."""
    draws = random.Random(0)
    left: set[Pair] = {
        (a, x, b, y)
        for a, b in combinations(range(len(options)), 2)
        for x, y in product(options[a], options[b])
        if runs({x, y})
    }
    while left:
        a, x, b, y = min(left)
        drawn = [[_drawn(words, draws) for words in options] for _ in range(30)]
        for row in drawn:
            row[a], row[b] = x, y
        best = max(filter(runs, drawn), key=lambda row: len(_pairs(row) & left))
        left -= _pairs(best)
        yield tuple(best)


def _drawn(words: tuple[str, ...], draws: random.Random) -> str:
    word = draws.choice(words)
    return words[0] if word in SLOW and draws.random() < 0.7 else word


def _pairs(row: Sequence[str]) -> set[Pair]:
    return {(a, x, b, y) for (a, x), (b, y) in combinations(enumerate(row), 2)}


def training(framework: str, program: str, words: Collection[str], folder: Path) -> Training:
    """The training of a row."""
    separator = "-" if program == "ds.py" else "+"
    case = separator.join(word for word in words if word not in ("", "two"))
    ranks = 2 if {"two", "ddp", "fsdp2"} & set(words) else 1
    made = Training(framework, program, case or "plain", folder, ranks)
    if program == "ds.py" and ranks == 1:
        made.env |= ALONE
    if program in ("pl.py", "hf.py"):
        made.env["SPOTGUARD_EVERY"] = "0.1"  # what a kill leaves
    return made


def cut_and_compare(made: Training, ends: int, draws: random.Random) -> int:
    """Run it plainly, and with lives that end at drawn steps by a notice or SIGKILL, and in evaluations: the number of lives.

    A rank that outlives an error of another one for a step may meet its own next end there: one life has both then.
    """
    steps = range(1, made.plain()["step"])
    # If there are enough, one end a step: ranks may save the next step, and a second end here would be behind them.
    kinds = ("step", "kill", "error")
    stops = [f"{kind}:{step}" for step in steps for kind in draws.sample(kinds, 1 + (len(steps) < ends))]
    evaluations = [f"{kind}:{step}" for kind in ("eval", "val") for step in steps]  # most steps have none
    drawn = [event for known in (stops, evaluations) for event in draws.sample(known, min(ends, len(known)))]
    _, lives = made.cut(*drawn)
    for rank in ["", "1"][: made.ranks]:
        assert differences(made.result(f"plain{rank}"), made.result(f"cut{rank}")) == []
    return lives


@pytest.mark.parametrize(
    ("framework", "program", "row"),
    [
        pytest.param(*each, row, id=f"{each[1]}-{'+'.join(filter(None, row))}")
        for each in OPTIONS
        for row in rows(OPTIONS[each])
    ],
)
def test_options_in_pairs(framework: str, program: str, row: tuple[str, ...], tmp_path: Path) -> None:
    """Three times, at other moments."""
    for repetition in range(3):
        made = training(framework, program, row, tmp_path / str(repetition))
        made.folder.mkdir()
        assert cut_and_compare(made, 4, random.Random(f"{row}{repetition}")) > 3


@pytest.mark.parametrize(
    ("framework", "program", "case"),
    [
        ("transformers", "hf.py", "eval+batch+mixed"),
        ("transformers", "accel.py", "seedable+batch+loading"),
        ("lightning", "pl.py", "often+logged"),
        ("deepspeed", "ds.py", "2-bf16-long+two"),
        ("deepspeed", "ds.py", "1-fp32-compiled-long+two"),
    ],
)
def test_fifty_ends_of_one_training(framework: str, program: str, case: str, tmp_path: Path) -> None:
    made = training(framework, program, case.split("+"), tmp_path)
    assert cut_and_compare(made, 50, random.Random(case)) > 45
