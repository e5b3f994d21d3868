"""What goes in comes out, in value and in type; what would not is refused by name; and no JSON does harm."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.values.decoder import decode
from spotguard.hooks.checkpoint.format.values.encoder import encode
from spotguard.hooks.checkpoint.format.values.sameness import same
from spotguard.providers.errors import CheckpointError, StateError
from tests.cases import cases
from tests.tiers import examples


def no_tensor(tensor: object) -> Any:
    raise AssertionError("there is no tensor in this value")


def trip(value: Any) -> Any:
    """Through real JSON text and back."""
    return decode(json.loads(json.dumps(encode(value, no_tensor, "it"), allow_nan=False)), no_tensor)


PLAIN: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**64), 10**5000, 0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308,
    float("inf"), float("-inf"), float("nan"), "", "a", "ä𝄞", "\0\x1f\x7f", "\ud800", "\ud83d\ude00", "\U0001f600", "$", b"", b"\0\xff",
    bytearray(b"ab"), [], [[]], (), ((),), ([], ()), {}, {"a": {"b": []}}, {"$": 1}, {"$": "tuple", "items": []}, {1: 2, "1": 3},
    {None: 1, True: 2, 1.5: 3, (1, "a"): 4, b"k": 5, frozenset({1}): 6}, {"\ud800": 1}, set(), {1, "a", None, (1,)}, frozenset({2.5}),
    OrderedDict([("b", 1), ("a", 2)]), Counter("abca"), Counter({80: 1, 120: 1}), defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}),
    deque([1, 2], maxlen=5), deque(), complex(1, -0.0), complex(float("nan"), float("inf")), range(3), range(10, -7, -3), range(2**70),
    slice(None), slice(1, "a", (2,)), ..., date(2026, 1, 31), datetime(2026, 1, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 10, 25, 2, 30, fold=1), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3.5))),  # noqa: DTZ001
    time(1, 2, 3), time(1, tzinfo=UTC), timedelta(days=-1, microseconds=1), timedelta.max,
]  # fmt: skip


@cases("value", PLAIN)
def test_a_value_comes_back(value: Any) -> None:
    """In value and type, at the top and inside a container."""
    assert same(value, trip(value)) == ""
    assert same([value], trip([value])) == ""
    assert same({"x": (value,)}, trip({"x": (value,)})) == ""


def test_a_nan_keeps_its_payload() -> None:
    """Somebody may have put something there, and bit for bit means bit for bit."""
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert struct.pack(">d", trip(odd)).hex() == "fff8000000000123"


def test_the_order_of_a_dict_is_kept() -> None:
    """Also where keys are not strings, and where JSON tools would sort."""
    for value in ({"b": 1, "a": 2}, {2: 1, 1: 2}, {"b": 1, 0: 2, "a": 3}):
        assert list(trip(value)) == list(value)


def test_a_set_gives_the_same_bytes_in_every_process() -> None:
    """Whatever strings are hashed by: a manifest is a function of the state."""
    program = (
        "import json; from spotguard.hooks.checkpoint.format.values.encoder import encode\n"
        "print(json.dumps(encode({'s': {'a', 'b', 'c', 1, (2, 'd')}}, None)))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed), **_path()},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(seen) == 1


def _path() -> dict[str, str]:
    import os

    return {"PYTHONPATH": os.environ["PYTHONPATH"]}


# --- any value --------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.text(st.characters())
    | st.binary(max_size=20) | st.complex_numbers() | st.datetimes() | st.dates() | st.timedeltas() | st.times()
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
)  # fmt: skip
hashable = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    scalars
    | st.binary().map(bytearray)
    | st.frozensets(hashable, max_size=4)
    | st.sets(hashable, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=7))
        | st.dictionaries(hashable, inner, max_size=4)
        | st.dictionaries(st.text(st.characters()) | st.just("$"), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(hashable, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.dictionaries(hashable, inner, max_size=3).map(Counter)
        | st.tuples(inner, inner, inner).map(lambda parts: slice(*parts))
    ),
    max_leaves=20,
)


@settings(max_examples=examples(75), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_any_value_comes_back(value: Any) -> None:
    """Value and type, recursively."""
    assert same(value, trip(value)) == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
WORDS = ["int", "float", "str", "bytes", "bytearray", "tuple", "set", "frozenset", "dict", "OrderedDict", "Counter",
         "defaultdict", "deque", "slice", "range", "complex", "ellipsis", "date", "datetime", "time", "timedelta", "tensor",
         "parameter", "numpy.ndarray", "numpy.scalar", "numpy.str_", "numpy.bytes_", "numpy.dtype", "torch.Size", "torch.dtype", "torch.device", "object"]  # fmt: skip
FIELDS = ["items", "hex", "bits", "units", "base64", "parts", "iso", "fold", "offset", "factory", "maxlen", "name", "shape",
          "dtype", "order", "requires_grad", "value"]  # fmt: skip
fields: st.SearchStrategy[Any] = st.sampled_from([None, 0, -1, 10**30, 1.5, "", "0x1", "ff", "AA==", "<f8", "O", "C", "F", "list", "eval", "cpu", "float32",
                          "2026-01-01", [], [1], [[1, 2]], [[[], 1]], [{}], {}])  # fmt: skip
typed_values = st.recursive(
    json_values,
    lambda inner: st.builds(
        lambda word, rest: {"$": word, **rest},
        st.sampled_from(WORDS),
        st.dictionaries(st.sampled_from(FIELDS), fields | inner, max_size=5),
    ),
    max_leaves=6,
)


#: Values that a list may have beside each other; some are refused.
ELEMENTS = [
    0,
    True,
    None,
    1.5,
    "a",
    2**63 - 1,
    -(2**63),
    2**63,
    -(2**63) - 1,
    math.inf,
    math.nan,
    b"x",
    [2**63],
    {"$": "no"},
]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(ELEMENTS), max_size=4))
def test_a_list_is_read_as_its_elements_are(raw: list[Any]) -> None:
    def read(value: Any) -> Any:
        try:
            return [decode(value, no_tensor)]
        except CheckpointError:
            return None

    alone = [read(each) for each in raw]
    expected = None if None in alone else [each for (each,) in alone]
    assert read(raw) == (None if expected is None else [expected])
    assert read({"$": "tuple", "items": raw}) == (None if expected is None else [tuple(expected)])
    assert expected is None or decode(raw, no_tensor) is not raw


@settings(max_examples=examples(150), deadline=None)
@given(typed_values)
def test_any_json_is_read_or_refused(raw: Any) -> None:
    """By one kind of error, and nothing is run: whoever can write to the store can write this."""

    def nothing_there(name: str) -> Any:
        raise CheckpointError(f"no tensor {name!r}")

    try:
        value = decode(raw, nothing_there)
    except (CheckpointError, StateError):  # the second: of a library that is not here
        return
    encode(value, no_tensor)  # what came out is something that could have gone in


@pytest.mark.parametrize(
    "raw",
    [
        {"$": "defaultdict", "factory": "eval", "items": []},
        {"$": "defaultdict", "factory": "__import__", "items": []},
        {"$": "numpy.ndarray", "dtype": "|O", "shape": [1], "order": "C", "base64": "AAAAAAAAAAA="},
        {"$": "numpy.ndarray", "dtype": "<f8", "shape": [10**12], "order": "C", "base64": ""},
        {"$": "numpy.ndarray", "dtype": "<f8", "shape": [-1], "order": "C", "base64": "AAAAAAAAAAA="},
        {"$": "numpy.dtype", "name": "f8,f8"},
        {"$": "torch.dtype", "name": "nn"},
        {"$": "torch.dtype", "name": "load"},
        {"$": "torch.device", "name": "cpu;x"},
        {"$": "dict", "items": [[[], 1]]},
        {"$": "dict", "items": [[1, 2], [1, 3]]},
        {"$": "set", "items": [1, 1]},
        {"$": "deque", "maxlen": 1, "items": [1, 2]},
        {"$": "posix.system"},
        {"$": ["tuple"]},
        {"$": None},
        float("nan"),
        pytest.param(object(), id="object"),
        {1: 2},
    ],
    ids=str,
)
def test_json_of_nobody_is_refused(raw: Any) -> None:
    """Each is a way that a looser reader would go wrong."""
    if isinstance(raw, dict) and str(raw.get("$")).startswith("torch."):
        pytest.importorskip("torch")  # without it, that is what is said
    with pytest.raises(CheckpointError, match="the saved state cannot be read"):
        decode(raw, no_tensor)


def test_deep_json_is_refused() -> None:
    """Not by a crash of the interpreter."""
    raw: Any = []
    for _ in range(100_000):
        raw = [raw]
    with pytest.raises(CheckpointError, match="nested deeper"):
        decode(raw, no_tensor)


# --- refused by name ----------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class MyDict(dict[str, int]):
    pass


class MyInt(int):
    pass


class MyZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "mine"


Point = namedtuple("Point", "x y")


@cases(
    "value, said",
    [
        ({"lr_lambdas": [lambda step: step]}, r"^it\.lr_lambdas\[0\] is a function, which cannot be saved"),
        ({"a": [1, {"b": object()}]}, r"^it\.a\[1\]\.b is an object, which cannot be saved"),
        ({3: {"x": print}}, r"^it\[3\]\[?\.?x"),
        ({(1, 2): print}, r"^it\[<tuple>\] is a builtin_function_or_method"),
        ([Colour.RED], r"^it\[0\] is .*Colour"),
        (Level.LOW, r"^it is .*Level, a subclass of int that would come back as another type"),
        (Point(1, 2), r"^it is .*Point, a subclass of tuple"),
        (MyDict(a=1), r"^it is .*MyDict, a subclass of dict"),
        (MyInt(3), r"^it is .*MyInt, a subclass of int"),
        (PurePosixPath("/x"), r"^it is a pathlib\S*\.PurePosixPath"),
        (int, r"^it is a type"),
        (memoryview(b"x"), r"^it is a memoryview"),
        (iter([]), r"^it is a list_iterator"),
        (defaultdict(lambda: 0), r"^it\.default_factory is a function.*use one of list"),
        (defaultdict(MyDict), r"^it\.default_factory is a type"),
        (datetime(2026, 1, 1, tzinfo=MyZone()), r"^it\.tzinfo is .*MyZone.*UTC"),
        ({1: {MyInt(2)}}, r"^it\[1\] element <MyInt> is "),
        ({MyInt(2): 1}, r"^it key <MyInt> is "),
        (math, r"^it is a module"),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(value: Any, said: str) -> None:
    """With the path inside the registered object, the type, and what to do, in one line."""
    with pytest.raises(StateError, match=said) as caught:
        encode(value, no_tensor, "it")
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize("make", [list, dict, deque, OrderedDict])
def test_a_circle_is_refused(make: Callable[[], Any]) -> None:
    """At once, and by name, not by running out of stack."""
    value = make()
    inner = [value]
    if isinstance(value, dict):
        value["x"] = inner
    else:
        value.append(inner)
    with pytest.raises(StateError, match="contains itself"):
        encode(value, no_tensor, "it")


def test_a_list_held_twice_is_no_circle() -> None:
    """It comes back as two equal lists."""
    shared = [1]
    assert trip([shared, shared, {"x": shared}]) == [[1], [1], {"x": [1]}]


def test_depth_is_bounded() -> None:
    """Sixty levels pass, a thousand are refused with a path that can be read."""
    value: Any = "bottom"
    for _ in range(40):
        value = {1: (value,)} if _ % 2 else [value]
    assert same(value, trip(value)) == ""
    for _ in range(1000):
        value = [value]
    with pytest.raises(StateError, match="nested deeper than") as caught:
        encode(value, no_tensor, "it")
    assert len(str(caught.value)) < 400


def test_encoding_changes_nothing() -> None:
    """A defaultdict is not asked for what it lacks, a deque not emptied."""
    value = {"d": defaultdict(list, {"a": [1]}), "q": deque([1, 2])}
    encode(value, no_tensor)
    assert value == {"d": defaultdict(list, {"a": [1]}), "q": deque([1, 2])}


def test_neither_numpy_nor_torch_is_loaded() -> None:
    """By encoding, decoding or comparing plain values."""
    program = (
        "import sys; from spotguard.hooks.checkpoint.format.values.decoder import decode; from spotguard.hooks.checkpoint.format.values.encoder import encode; from spotguard.hooks.checkpoint.format.values.sameness import same\n"
        "v = {'a': (1, {2.5})}; assert same(v, decode(encode(v, None), None)) == ''\n"
        "print(*{'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@cases(
    "one, other",
    [
        (1, True), (1, 1.0), (0.0, -0.0), ([], ()), ({}, OrderedDict()), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [1, 2]),
        (deque(maxlen=1), deque(maxlen=2)), (defaultdict(list), defaultdict(dict)), (b"", bytearray()), ({1}, {True}), ({1}, {2}),
        (float("nan"), 1.0), (1j, 1 - 0j), ({"a": [1, {2: (3,)}]}, {"a": [1, {2: (4,)}]}), (set(), frozenset()),
    ],
)  # fmt: skip
def test_values_that_differ_are_not_the_same(one: Any, other: Any) -> None:
    """Stricter than ==, both ways round."""
    assert same(one, other)
    assert same(other, one)
    assert same([one], [other]).startswith("[0]")


def test_the_place_of_a_difference_is_named() -> None:
    """As a path that can be typed."""
    assert same({"a": [1, {2: (3,)}]}, {"a": [1, {2: (4,)}]}) == "['a'][1][2][0]"
