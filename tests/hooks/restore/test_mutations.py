"""A manifest with one thing changed and a CRC that is right again: all of a sound checkpoint is restored, or nothing.

A restore gives the newest checkpoint's bits, or the older one's with a line that names the damage. A changed plain value
(a learning rate, a counter) is another valid checkpoint, and comes back as it stands: but no tensor with it.

What a restore calls damaged, `verify` and `prune` call damaged, and nothing else.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
import random
import resource
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch

from spotguard.cli.commands.checkpoints.verify import verdicts_of
from spotguard.cli.select_checkpoint import Target
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.format.keys import manifest_name
from spotguard.hooks.checkpoint.format.packing import pack_numbers
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.checkpoint.retention import plan_pruning
from spotguard.providers.errors import StateError
from tests.fakes.clock import Impatient
from tests.fakes.store import FakeStore
from tests.fakes.training import Job, different, guarded, saved_each_step, seed, small

pytestmark = pytest.mark.torch

TOTAL = 2
#: Cases of one seed, and those of it that are fast.
CASES, FEW = 275, 140
#: Bytes of address space that a restore may take beyond what is there: its frames, and its threads' stacks.
ROOM = 2 * 2**30

Path = tuple[Any, ...]
_GONE, _TWICE = object(), object()


class Loader:
    """Counts what was read. It takes back only what it says itself."""

    def __init__(self) -> None:
        self.position, self.order = 0, [2, 0, 1]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"position", "order"} or sorted(state["order"]) != [0, 1, 2]:
            raise ValueError("no place among these samples")
        self.position, self.order = state["position"] + 0, state["order"]


def job() -> Job:
    made = small(width=4)
    made.values["loader"] = Loader()
    made.values["typed"] = {
        "many": (1, 2.5, None, True, "ä", b"\0\1", 2**70, float("inf"), 1j, ...),
        "kinds": [{1, 2}, frozenset({3}), Counter("aab"), deque([1, 2], 3), range(4), slice(1, 2)],
        "when": datetime(2035, 6, 30, 18, tzinfo=UTC),
        "of others": {"array": np.arange(3.0), "word": np.float32(2), "size": torch.Size([2, 3])},
        "tensor": torch.arange(4),
        3: torch.float64,
    }
    train = made.step

    def step(number: int) -> None:
        train(number)
        made.values["loader"].position += 1

    made.step = step
    return made


# --- one thing changed -----------------------------------------------------------------------------------------

_WORDS = ("", "x", "int32", "float64", "../../x", "AdamX", "NaN", "tuple", "tensor", "numpy.ndarray")
_NUMBERS = (0, -1, 2**31, 2**43, 2**63, 10**30, 1e308, -1e308, float("nan"), float("inf"))
_CONTAINERS: tuple[Any, ...] = (None, True, [], {}, [2**40, 2**3], [[0], [2**43], 0, 8, 2**43, 0])
_TYPED: tuple[Any, ...] = (
    {"$": "tensor", "name": "model/0.weight"},
    {"$": "tensor", "name": "optimizer/state/model/0.weight/exp_avg"},
    {"$": "numpy.ndarray", "dtype": "<f8", "shape": [2**40], "order": "C", "base64": ""},
    {"$": "numpy.ndarray", "dtype": "<f8", "shape": [2**62, 0], "order": "C", "base64": ""},
    {"$": "numpy.scalar", "dtype": "<U999999999", "base64": ""},
    {"$": "torch.Size", "items": [2**80]},
    {"$": "deque", "maxlen": 2**80, "items": []},
    {"$": "float", "bits": ""},
    {"$": "set", "items": [[]]},
)


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every value in a manifest; of a long list its ends."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)) if len(value) < 9 else (0, 1, len(value) - 1):
            yield from _places(value[index], (*path, index))


def _others(value: Any) -> list[Any]:
    """Values that may stand in its place."""
    near: list[Any] = []
    if isinstance(value, str):
        near = [value + "x", value[:-1], value.swapcase()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        near = [value + 1, value - 1, value * 2 + 3, str(value)]
    elif isinstance(value, list):
        near = [value[::-1], value * 2, value[:-1]]
    return [_GONE, _TWICE, *near, *_WORDS, *_NUMBERS, *_CONTAINERS, *_TYPED]


def _changed(manifest: Any, path: Path, other: Any) -> Any:
    made = copy.deepcopy(manifest)
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    last = path[-1]
    if other is _GONE:
        del holder[last]
    elif other is not _TWICE:
        holder[last] = other
    elif isinstance(holder, list):
        holder.insert(last, holder[last])
    else:
        holder[f"{last}2"] = holder[last]
    return made


#: Type code of each column of numbers (`packing.columns_in`).
_NUMBERS_OF = {"counts": "I", "offsets": "q", "sizes": "q", "objects": "I", "starts": "q", "crc32": "I"}


def unpacked(manifest: Any) -> Any:
    """The manifest with its trees, and with its columns as lists."""
    runs = [
        {"forms": json.loads(_inflated(run["forms"]))}
        | {name: array(code, _inflated(run[name])).tolist() for name, code in _NUMBERS_OF.items()}
        for run in manifest["tensors"]
    ]
    state = {name: json.loads(_inflated(packed)) for name, packed in manifest["state"].items()}
    return {**manifest, "tensors": runs, "state": state}


def _inflated(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def packed(manifest: Any) -> Any:
    """The reverse, of any JSON."""

    def column(code: str, numbers: Any) -> str:
        try:
            return pack_numbers(code, numbers)
        except (TypeError, ValueError, OverflowError):
            return _packed(numbers)

    made = dict(manifest)
    if isinstance(state := manifest.get("state"), dict):
        made["state"] = {name: _packed(tree) for name, tree in state.items()}
    if isinstance(runs := manifest.get("tensors"), list):
        made["tensors"] = [
            {
                name: column(_NUMBERS_OF[name], each) if name in _NUMBERS_OF else _packed(each)
                for name, each in run.items()
            }
            if isinstance(run, dict)
            else run
            for run in runs
        ]
    return made


def _packed(value: Any) -> str:
    """As `pack`, which refuses what is not a number."""
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


def sealed(manifest: Any) -> bytes:
    """As a writer would have put it."""
    body = json.dumps(manifest, separators=(",", ":")).encode()
    return b'{"crc32":%d,"manifest":%b}\n' % (zlib.crc32(body), body)


# --- what becomes of it ----------------------------------------------------------------------------------------

#: Places at which a sound checkpoint of another script differs: names and classes that the manifest says only once.
_REGISTRATION: tuple[Callable[[Path], bool], ...] = (
    lambda path: path[:1] == ("state",) and len(path) == 2,
    lambda path: path[:3] == ("state", "optimizer", "param_groups"),
    lambda path: path[:1] == ("state",) and path[1:] in (("optimizer", "class"), ("scheduler", "class")),
    lambda path: path == ("state", "scheduler", "state"),
    lambda path: path == ("state", "typed", "$"),
    lambda path: path[:3] == ("state", "optimizer", "state"),
    lambda path: path[:2] == ("state", "model") and len(path) == 3,
)

#: Parts of which only the registered object knows what their trees may hold.
_OBJECTS = (("optimizer",), ("loader",), ("scheduler",))


class Trial:
    """One store with two checkpoints; the manifest of the newest is what a case makes of it."""

    def __init__(self) -> None:
        store = FakeStore()
        self.states = saved_each_step(store, TOTAL, make=job)
        whole = find_whole(store, "run")
        assert whole is not None
        self.whole: WholeCheckpoint = whole
        self.objects = dict(store.objects)
        self.key = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
        self.manifest = json.loads(self.objects[self.key])["manifest"]
        assert sealed(self.manifest) == self.objects[self.key]
        self.inside = unpacked(self.manifest)
        assert packed(self.inside) == self.manifest
        #: The paths of `bits` at which tensors stand.
        self.tensors = {path for path in self.states[TOTAL] if path.startswith("model.")}
        self.tensors |= {path for path in self.states[TOTAL] if "exp_avg" in path or path.endswith(".step")}

    def case(self, path: Path, other: Any, caplog: pytest.LogCaptureFixture, *, inside: bool) -> str:
        """One case, in the manifest or inside its packed texts. Returns newest, older, value or refused, by what the restore did."""
        caplog.clear()
        store = FakeStore()
        changed = _changed(self.inside if inside else self.manifest, path, other)
        store.objects = {**self.objects, self.key: sealed(packed(changed) if inside else changed)}
        here = job()
        seed(99)
        with guarded(store, here.values) as guard:
            before, refusal = here.bits(), ""
            try:
                done = guard.restore()
            except UnsupportedFormatError as error:
                refusal = "" if path == ("store_format",) else str(error)
                done = 0
            except StateError as error:
                refusal = "" if any(says(path) for says in _REGISTRATION) else str(error)
                done = 0
            after = here.bits()
        assert not refusal
        if path[0] != "store_format":
            self.judged(store, damaged=done == TOTAL - 1, by_object=path[1:2] in _OBJECTS)
        if not done:
            assert different(after, before) == [], "a refusal changes nothing"
            return "refused"
        if done == TOTAL - 1:
            assert different(after, self.states[TOTAL - 1]) == []
            said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            assert any(str(self.whole.name) in each for each in said), said
            return "older"
        assert done == TOTAL
        changed = set(different(after, self.states[TOTAL]))
        if not changed:
            return "newest"
        assert path[0] == "state", changed
        assert all(each.startswith(str(path[1])) for each in changed), changed
        assert not changed & self.tensors, changed
        return "value"

    def judged(self, store: FakeStore, *, damaged: bool, by_object: bool) -> None:
        """Assert that the commands say of the newest checkpoint what the restore said.

        Args:
            damaged: the restore called it damaged.
            by_object: a registered object of its own may have done so.
        """
        meant = Target(store, "run")
        said = verdicts_of(meant, everything=False, say=None, clock=Impatient())[0]
        damaged = damaged and not (by_object and said["status"] == "complete")
        assert said["status"] == ("damaged" if damaged else "complete"), said
        assert bool(said["damage"]) == damaged
        if any("CRC32 differs" in each or "has a header" in each for each in said["damage"]):
            return  # of all these, only `verify` reads the objects
        line = list_checkpoints(store, "run", deep=True)[0]
        assert (line.status == "damaged") == damaged, line
        pruning = plan_pruning(store, "run", keep=1)
        assert (self.whole.name in pruning.damaged) == damaged
        assert (self.whole.name in pruning.kept) != damaged
        assert not damaged or not pruning.departing, "what a restore falls back to stays"


@pytest.fixture(scope="module")
def trial() -> Trial:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Trial()
    finally:
        torch.set_num_threads(before)


@contextmanager
def _little_memory() -> Iterator[None]:
    """An allocation of terabytes fails at once, whatever the kernel promises."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("number", "cases"),
    [
        (0, FEW),
        *(pytest.param(each, CASES, marks=pytest.mark.soak) for each in range(40)),
    ],
)
def test_one_thing_changed_in_a_manifest(
    number: int, cases: int, trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    """Each seed draws its own changes, half of them in the state."""
    chance = random.Random(number)
    within = [*_places(trial.inside)]
    state = [path for path in within if path[0] == "state"]
    columns = [path for path in within if path[0] == "tensors"]
    rest = [*_places(trial.manifest)]
    found: Counter[str] = Counter()
    with _little_memory():
        for at in range(cases):
            path = chance.choice((state, columns, state, rest)[at % 4])
            value = trial.manifest if at % 4 == 3 else trial.inside
            for key in path:
                value = value[key]
            other = chance.choice(_others(value))
            name = {id(_GONE): "gone", id(_TWICE): "twice"}.get(id(other), repr(other))
            try:
                found[trial.case(path, other, caplog, inside=at % 4 != 3)] += 1
            except Exception as error:
                error.add_note(f"seed {number}, case {at}: {path} becomes {name}")
                raise
    assert found["older"] > cases // 4, found
    assert found["newest"] + found["value"] > cases // 20, found
