"""The state of everything that torch, torchdata and numpy put beside a model survives, in value and in type."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from spotguard.hooks.checkpoint.format.values.decoder import decode  # noqa: E402
from spotguard.hooks.checkpoint.format.values.encoder import encode  # noqa: E402
from spotguard.hooks.checkpoint.format.values.foreign import LARGE_ARRAY  # noqa: E402
from spotguard.hooks.checkpoint.format.values.sameness import same  # noqa: E402
from spotguard.providers.errors import CheckpointError, StateError  # noqa: E402
from tests.cases import cases  # noqa: E402

pytestmark = pytest.mark.torch


def trip(value: Any) -> Any:
    """Through JSON text and back, tensors by name."""
    kept: dict[str, Any] = {}

    def take(tensor: Any) -> str:
        kept[f"t{len(kept)}"] = tensor
        return f"t{len(kept) - 1}"

    raw = json.loads(json.dumps(encode(value, take, "it"), allow_nan=False))
    return decode(raw, lambda name: kept[name].detach().clone())


def survives(value: Any) -> None:
    assert same(value, trip(value)) == ""


# --- schedulers -------------------------------------------------------------------------------------------------------


class Warm:
    """A callable with a state of its own, as LambdaLR keeps it."""

    def __init__(self) -> None:
        self.seen = [1, 2.5]

    def __call__(self, step: int) -> float:
        return 0.5**step


schedules = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR-function": lambda opt: schedules.LambdaLR(opt, lambda step: 0.9**step),
    "LambdaLR-object": lambda opt: schedules.LambdaLR(opt, Warm()),
    "MultiplicativeLR": lambda opt: schedules.MultiplicativeLR(opt, lambda step: 0.9),
    "StepLR": lambda opt: schedules.StepLR(opt, 2),
    "MultiStepLR": lambda opt: schedules.MultiStepLR(opt, [1, 3, 3]),
    "ConstantLR": lambda opt: schedules.ConstantLR(opt),
    "LinearLR": lambda opt: schedules.LinearLR(opt),
    "ExponentialLR": lambda opt: schedules.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: schedules.PolynomialLR(opt),
    "CosineAnnealingLR": lambda opt: schedules.CosineAnnealingLR(opt, 5),
    "CosineAnnealingWarmRestarts": lambda opt: schedules.CosineAnnealingWarmRestarts(opt, 3, 2),
    "CyclicLR": lambda opt: schedules.CyclicLR(opt, 0.01, 0.1, mode="exp_range", gamma=0.99),
    "CyclicLR-function": lambda opt: schedules.CyclicLR(opt, 0.01, 0.1, scale_fn=lambda x: 1.0),
    "OneCycleLR": lambda opt: schedules.OneCycleLR(opt, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda opt: schedules.ReduceLROnPlateau(opt, patience=0),
    "SequentialLR": lambda opt: schedules.SequentialLR(
        opt, [schedules.ConstantLR(opt), schedules.MultiStepLR(opt, [2])], milestones=[2]
    ),
    "ChainedScheduler": lambda opt: schedules.ChainedScheduler(
        [schedules.ConstantLR(opt), schedules.ExponentialLR(opt, 0.9)]
    ),
    "SWALR": lambda opt: torch.optim.swa_utils.SWALR(opt, 0.05),
}


def test_every_scheduler_of_torch_is_here() -> None:
    """A new one in torch fails this test until it is listed."""
    classes = {
        name
        for name, value in vars(schedules).items()
        if isinstance(value, type) and issubclass(value, schedules.LRScheduler) and not name.startswith("_")
    }
    assert classes - {"LRScheduler"} <= {name.partition("-")[0] for name in SCHEDULERS}


@cases("name", SCHEDULERS)
def test_a_scheduler_survives(name: str) -> None:
    """Its state comes back as it was, and a new scheduler that loads it goes on as the old one does."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)

    def step(scheduler: Any, optimizer: Any) -> list[float]:
        rates = []
        for _ in range(4):
            optimizer.step()
            scheduler.step(*([1.0] if "Plateau" in name else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    step(scheduler, optimizer)
    state = scheduler.state_dict()
    survives(state)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    resumed = SCHEDULERS[name](other)
    other.load_state_dict(trip(optimizer.state_dict()))
    resumed.load_state_dict(trip(state))
    assert step(resumed, other) == step(scheduler, optimizer)


def test_a_function_in_a_schedulers_state_is_refused_with_its_place() -> None:
    """As a scheduler of one's own that keeps its lambdas in its state_dict."""
    with pytest.raises(StateError, match=r"^scheduler\.lr_lambdas\[0\] is a function, which cannot be saved"):
        encode({"lr_lambdas": [lambda step: 1.0], "last_epoch": 3}, lambda tensor: "", "scheduler")


# --- the rest of a training loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        lambda params: torch.optim.Adam(params, amsgrad=True),
        lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), betas=(0.8, 0.95), foreach=False),
        lambda params: torch.optim.LBFGS(params, history_size=3),
        lambda params: torch.optim.Adafactor(params),
        lambda params: torch.optim.Rprop(params),
    ],
)
def test_an_optimizer_survives(make: Callable[[Any], Any]) -> None:
    """Groups, tuples of betas, tensors for rates, and moments by name."""
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    survives(optimizer.state_dict())


def test_a_grad_scaler_survives() -> None:
    """Enabled and disabled (whose state is an empty dict)."""
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler.scale(torch.ones(1))
        survives(scaler.state_dict())


def test_generators_survive() -> None:
    """python's, numpy's old and new, and torch's."""
    import random

    survives(random.getstate())
    survives(np.random.get_state())
    survives(np.random.default_rng(3).bit_generator.state)
    survives(np.random.Generator(np.random.Philox(3)).bit_generator.state)
    survives(torch.random.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")
def test_a_stateful_data_loader_survives(workers: int) -> None:
    """In the middle of an epoch, with and without workers; the restored one goes on with the next batch."""
    data = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return data.StatefulDataLoader(list(range(20)), batch_size=2, shuffle=True, num_workers=workers)

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    survives(state)
    second = loader()
    second.load_state_dict(trip(state))
    assert [batch.tolist() for batch in second] == [batch.tolist() for batch in batches]


def test_averaged_models_survive() -> None:
    """EMA and SWA: a counter beside the weights."""
    averaged = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2))
    averaged.update_parameters(torch.nn.Linear(2, 2))
    survives(averaged.state_dict() | {})


# --- torch's own types ------------------------------------------------------------------------------------------------


@cases(
    "value",
    [
        torch.Size([2, 3]), torch.Size([]), torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.device("cpu"),
        torch.device("cuda", 1), torch.device("meta"), torch.ones(2), torch.tensor(3.5), torch.empty(0, 4), torch.ones(2, 3).t(),
        torch.tensor([float("nan")]), torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
    ],
)  # fmt: skip
def test_a_value_of_torchs_comes_back(value: Any) -> None:
    """At the top and inside a container, a Parameter as a Parameter."""
    back = trip({"x": [value]})["x"][0]
    assert type(back) is type(value)
    if isinstance(value, torch.Tensor):
        assert back.requires_grad == value.requires_grad
        assert same(value.detach().contiguous(), back.detach().contiguous()) == ""
    else:
        assert back == value


def test_a_tensor_is_given_away_once_for_each_place() -> None:
    """The caller decides what a name means; the path is not its business."""
    taken: list[Any] = []
    shared = torch.ones(2)

    def take(tensor: Any) -> str:
        taken.append(tensor)
        return f"t{len(taken)}"

    raw = encode({"a": shared, "b": [shared]}, take)
    assert [each is shared for each in taken] == [True, True]
    assert raw == {"a": {"$": "tensor", "name": "t1"}, "b": [{"$": "tensor", "name": "t2"}]}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.ones(2, 2).as_subclass(type("Mine", (torch.Tensor,), {})),
        lambda: torch.Generator(),
        lambda: torch.ones(2).max(0),
        lambda: torch.nn.Linear(2, 2),
        lambda: torch.strided,
    ],
)
def test_a_torch_value_that_json_lacks_is_refused(make: Callable[[], Any]) -> None:
    """By name, with the place."""
    with pytest.raises(StateError, match=r"^it\.x is "):
        encode({"x": make()}, lambda tensor: "t", "it")


def test_errors_about_tensors_are_the_callers_own() -> None:
    """A tensor that is not there is for the reader to say."""

    def give(name: str) -> Any:
        raise CheckpointError(f"tensor {name} is in no chunk")

    with pytest.raises(CheckpointError, match="tensor t1 is in no chunk"):
        decode({"$": "tensor", "name": "t1"}, give)
    with pytest.raises(CheckpointError, match="requires a gradient"):
        decode(
            {"$": "parameter", "name": "t", "requires_grad": True},
            lambda name: torch.ones(2, dtype=torch.int32),
        )


# --- numpy's ----------------------------------------------------------------------------------------------------------


@cases(
    "value",
    [
        np.float64(0.1), np.float32("nan"), np.float16(2), np.int8(-3), np.uint64(2**64 - 1), np.longlong(5), np.bool_(True),
        np.complex128(1 - 0j), np.str_("aä"), np.bytes_(b"ab\0"), np.str_(""), np.datetime64("2026-01-01T00:00", "ns"),
        np.timedelta64(3, "D"), np.datetime64("NaT"), np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.zeros((0, 3)),
        np.array(3.5), np.array(["ab", "c"]), np.array([b"x"]), np.arange(10)[::3], np.arange(3, dtype=">i4"), np.ones(2, np.longlong),
        np.array([True]), np.dtype("<f4"), np.dtype(">i8"), np.dtype("U3"), np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.array([np.nan, -0.0]),
    ],
)  # fmt: skip
def test_a_value_of_numpys_comes_back(value: Any) -> None:
    """Dtype to the letter, and a array that can be written to."""
    back = trip([value])[0]
    assert same(value, back) == ""
    if isinstance(value, np.ndarray):
        assert back.flags.f_contiguous == np.array(value).flags.f_contiguous or value.base is not None
        assert back.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]), np.array([None]), np.zeros(2, dtype="f8,i4"), np.ma.masked_array([1, 2], [0, 1]),
        np.rec.array([(1, 2)]), np.longdouble(1), np.zeros(2, np.clongdouble), np.dtype("O"), np.dtype("f8,f8"), np.random.default_rng(),
        np.zeros(2, dtype="f8,i4")[0], np.array([1]).flat,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_numpy_value_that_bytes_do_not_describe_is_refused(value: Any) -> None:
    """By name, with the place."""
    with pytest.raises(StateError, match=r"^it\[0\]"):
        encode([value], lambda tensor: "t", "it")


# --- large arrays -----------------------------------------------------------------------------------------------------

COUNT = 2 * LARGE_ARRAY


@pytest.mark.parametrize(
    "array",
    [
        np.arange(COUNT, dtype="float32"),
        np.arange(COUNT, dtype=">i4").reshape(2, -1),
        np.asfortranarray(np.arange(COUNT, dtype="longlong").reshape(4, -1)),
        np.arange(COUNT, dtype="float64")[::-2],
        np.broadcast_to(np.float64(1.5), (COUNT,)),
        np.array(["ab", "c"] * LARGE_ARRAY),
        np.arange(COUNT).astype("M8[ms]"),
        np.arange(COUNT) % 2 == 0,
    ],
    ids=["plain", "big-endian", "fortran", "backwards", "read-only", "words", "dates", "bools"],
)
def test_a_large_array_goes_beside_the_json(array: Any) -> None:
    """As a tensor's bytes: it comes back with dtype, order and value, can be written to, and is no text."""
    raw = encode(array, lambda tensor: "it")
    assert len(json.dumps(raw)) < 200
    back = trip(array)
    assert same(array, back) == ""
    assert back.flags.writeable
    assert back.flags.f_contiguous == (array.flags.f_contiguous or array.ndim == 1)


def test_a_small_array_and_one_of_an_older_checkpoint_are_text() -> None:
    """Whatever its size, what was written as text is read."""

    def nothing(tensor: Any) -> Any:
        raise AssertionError(tensor)

    assert "base64" in encode(np.zeros(8), nothing)
    data = np.arange(COUNT, dtype="<f8")
    text = {
        "$": "numpy.ndarray", "dtype": "<f8", "shape": [COUNT], "order": "C",
        "base64": base64.b64encode(data.tobytes()).decode(),
    }  # fmt: skip
    assert same(data, decode(text, nothing)) == ""


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3, dtype=torch.uint8), torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(4)]
)
def test_a_tensor_that_is_not_an_array_s_bytes_is_refused(tensor: Any) -> None:
    """By its size, its shape or its dtype."""
    raw = {"$": "numpy.ndarray", "dtype": "<f4", "shape": [4], "order": "C", "name": "it"}
    with pytest.raises(CheckpointError, match="an array"):
        decode(raw, lambda name: tensor)
