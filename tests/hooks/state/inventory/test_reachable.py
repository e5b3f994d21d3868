"""Whatever an optimizer holds is saved, or refused by name: what is in no group and no state of torch's would be lost in silence.

Two oracles. A run that is saved in its middle, restored into fresh objects and trained on has the bits of the uninterrupted
one. And after some steps everything that `gc.get_referents` finds within six steps of the optimizer lies in memory that a
save reads, or stands in its trees.
"""

from __future__ import annotations

import gc
import logging
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from spotguard.hooks.state.inventory import reachable
from spotguard.hooks.state.inventory.reachable import EXEMPT, SavedTensors, unsaved
from spotguard.hooks.state.inventory.walk import tensors_in
from spotguard.providers.errors import SpotguardError, StateError
from tests.fakes import foreign_optimizers as foreign
from tests.fakes.training import Job, bits, different, guarded, seed, step_on
from tests.hooks.state.parts.optimizers.test_optimizer import OPTIMIZERS, saved_and_resumed

pytestmark = pytest.mark.torch

Make = Callable[[nn.Module], Any]


def job_of(make: Make, dtype: torch.dtype = torch.float32, **more: Callable[[Any], Any]) -> Job:
    """A network with dropout and one optimizer.

    Args:
        make: the optimizer of a model.
        more: what else is registered, of the optimizer.
    """
    seed()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2)).to(dtype)
    optimizer = make(model)
    values = {"model": model, "optimizer": optimizer}
    job = Job({**values, **{name: of(optimizer) for name, of in more.items()}})

    def step(number: int) -> None:
        model.zero_grad()

        def loss_of() -> torch.Tensor:
            loss: torch.Tensor = model(torch.randn(5, 6).to(dtype)).float().square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss_of)
        else:
            loss_of()
            optimizer.step()

    job.step = step
    return job


def of(cls: Callable[..., Any]) -> Make:
    return lambda model: cls(model.parameters())


TORCHS = {name: of(make) for name, make in OPTIMIZERS.items()}
FOREIGN: dict[str, Callable[[], Job]] = {
    "schedule-free": lambda: job_of(of(foreign.ScheduleFree)),
    "8-bit": lambda: job_of(of(foreign.EightBit)),
    "shampoo": lambda: job_of(of(foreign.Shampoo)),
    "masters in the state": lambda: job_of(of(foreign.Masters), torch.bfloat16),
    "parameters in one piece": lambda: job_of(of(foreign.Flat)),
    "scratch": lambda: job_of(of(foreign.Scratch)),
    "lookahead around another": lambda: job_of(
        lambda model: foreign.Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    ),
    "sharpness, its base registered": lambda: job_of(
        of(foreign.Sharpness), base=lambda optimizer: optimizer.base_optimizer
    ),
    "an attribute, registered": lambda: job_of(of(foreign.Attribute), norm=lambda optimizer: optimizer.norm),
    "an EMA inside, registered": lambda: job_of(averaging, ema=lambda optimizer: optimizer.ema),
    "masters beside, in an object of the user's": lambda: job_of(
        of(foreign.MastersBeside), torch.bfloat16, masters=Copies
    ),
}


def averaging(model: nn.Module) -> Optimizer:
    return foreign.Averaging(model.parameters(), model)


class Copies:
    """What a user writes for tensors that hang somewhere."""

    def __init__(self, optimizer: Any) -> None:
        self.held = optimizer.masters

    def state_dict(self) -> dict[str, Any]:
        return {"masters": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for here, saved in zip(self.held, state["masters"], strict=True):
                here.copy_(saved)


@pytest.mark.parametrize("kind", FOREIGN)
def test_accepted_optimizers_continue_bit_for_bit(
    kind: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Saved in the middle, restored into fresh objects, trained to the end; and nothing is found missing on the way."""
    saved_and_resumed(FOREIGN[kind], folder)
    assert "no save is possible" not in caplog.text


REFUSED: dict[str, tuple[Make, torch.dtype, str]] = {
    "lookahead in an attribute": (of(foreign.SlowWeights), torch.float32, "optimizer.slow[…] and"),
    "an attribute": (of(foreign.Attribute), torch.float32, "optimizer.norm, which"),
    "a closure": (
        of(foreign.Closed),
        torch.float32,
        "optimizer.find(held)[",
    ),
    "on the parameters": (of(foreign.OnParameters), torch.float32, ".momentum, "),
    "masters beside": (
        of(foreign.MastersBeside),
        torch.bfloat16,
        "optimizer.masters[0], optimizer.masters[1] and",
    ),
    "an EMA inside": (averaging, torch.float32, "optimizer.ema.0.weight, optimizer.ema.0.bias and 2 more"),
    "another optimizer inside": (
        of(foreign.Sharpness),
        torch.float32,
        "optimizer.base_optimizer (SGD), which",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_optimizers_that_would_lose_state_are_refused_by_name(kind: str, folder: Path) -> None:
    """At `register`, with the way to it; and nothing of ours stays behind."""
    make, dtype, said = REFUSED[kind]
    job = job_of(make, dtype)
    with pytest.raises(StateError, match=re.escape(said)), guarded(folder, job.values):
        pass
    assert list(folder.iterdir()) == []
    assert not job.values["optimizer"]._optimizer_step_pre_hooks


# --- DeepSpeed's ZeRO-3, and what empties its groups ----------------------------------------------------------


def emptied(begun: bool) -> tuple[nn.Module, foreign.Emptied]:
    seed()
    model = nn.Linear(6, 2)
    return model, foreign.Emptied(torch.optim.AdamW(model.parameters(), lr=0.1), begun)


def one_step(model: nn.Module, engine: foreign.Emptied) -> None:
    model.zero_grad()
    model(torch.randn(5, 6)).square().mean().backward()
    engine.step()


def test_state_of_pieces_that_nobody_knows_is_refused(folder: Path) -> None:
    """It was saved as a full checkpoint without moments and without masters."""
    model, engine = emptied(begun=True)
    values = {"model": model, "optimizer": engine.optimizer}
    said = re.escape("optimizer.state (a key), optimizer.state[…]['step'] and 2 more")
    with pytest.raises(StateError, match=said), guarded(folder, values):
        pass
    assert list(folder.iterdir()) == []


def test_groups_without_parameters_are_refused(folder: Path) -> None:
    """Before its first step there is no state to see, either."""
    model, engine = emptied(begun=False)
    values = {"model": model, "optimizer": engine.optimizer}
    with pytest.raises(StateError, match="no parameters in its groups"), guarded(folder, values):
        pass
    assert list(folder.iterdir()) == []


def test_pieces_that_are_registered_go_on_bit_for_bit(folder: Path) -> None:
    """As an adapter for such a framework does it. (torch's own `state_dict` cannot be asked here: it fails.)"""

    def registered(model: nn.Module, engine: foreign.Emptied) -> dict[str, Any]:
        return {"model": model, "optimizer": engine.optimizer, "piece": engine.pieces[0]}

    def bits_of(model: nn.Module, engine: foreign.Emptied) -> dict[str, int]:
        moments = {"moments": dict(engine.optimizer.state[engine.pieces[0]])}
        return bits({"piece": engine.pieces[0], **moments})

    plain = emptied(begun=True)
    for _ in range(5):
        one_step(*plain)
    first = emptied(begun=True)
    with guarded(folder, registered(*first)) as guard:
        guard.restore()
        for _ in range(3):
            one_step(*first)
            guard.step()
        guard.save()
    second = emptied(begun=True)
    with guarded(folder, registered(*second)) as guard:
        for _ in range(guard.restore(), 5):
            one_step(*second)
            guard.step()
    assert different(bits_of(*second), bits_of(*plain)) == []


class DeepSpeedEngine(nn.Module):
    """As `deepspeed.runtime.engine` calls it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_deepspeeds_engine_and_its_parameters_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what they are: the masters of ZeRO-1 hang in the engine, and the weights of ZeRO-3 rest without elements."""
    fake: Any = types.ModuleType("deepspeed.runtime.engine")
    fake.DeepSpeedEngine = DeepSpeedEngine
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    model = nn.Linear(2, 2)
    engine = {"model": DeepSpeedEngine(model)}
    with (
        pytest.raises(StateError, match=r"model is a DeepSpeedEngine, .*integrations\.deepspeed"),
        guarded(folder, engine),
    ):
        pass
    vars(model.bias)["ds_id"] = 1
    with (
        pytest.raises(StateError, match=r"model\.bias is sharded by DeepSpeed's ZeRO-3"),
        guarded(folder, {"model": model}),
    ):
        pass
    assert list(folder.iterdir()) == []


# --- what comes with the first steps --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (foreign.Projected, "['projector'].matrix"),
        (foreign.LateAttribute, "optimizer.mean, which no save would include"),
    ],
)
def test_state_made_in_the_first_step_is_noticed_at_its_boundary(
    cls: type[Optimizer], said: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on, loudly, and no checkpoint is committed that lacks it."""
    job = job_of(of(cls))
    with guarded(folder, job.values) as guard:
        guard.restore()
        job.step(0)
        assert "no save is possible" not in caplog.text
        guard.step()
        assert said in caplog.text
        assert [r.levelno for r in caplog.records if "no save is possible" in r.message] == [logging.ERROR]
        with pytest.raises(SpotguardError, match=re.escape(said)):
            guard.save()
        step_on(guard, job, 1, 2, 3, 4)
    assert caplog.text.count("no save is possible") == 1
    assert not [
        path for path in folder.rglob("*") if path.name == "COMMIT.json" or path.suffix == ".safetensors"
    ]


def test_an_optimizer_whose_extra_state_is_gone_is_saved_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next look finds it gone."""
    job = job_of(of(foreign.LateAttribute))
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        job.values["optimizer"].step = lambda: None
        job.values["optimizer"].mean = None
        step_on(guard, job, 1, 2)
        assert guard.save().step == 3


def test_a_tensor_that_comes_late_is_noticed_too(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At boundaries 1, 2, 4, 8 and so on: an average that begins at step 5 is seen by the eighth."""
    job = job_of(of(foreign.Plain))
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1, 2, 3, 4)
        job.values["optimizer"].average = torch.ones(3)
        step_on(guard, job, 5, 6, 7)
        assert "no save is possible: optimizer (Plain) holds optimizer.average, which" in caplog.text


def test_a_count_beside_the_state_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A number is no tensor, and a run goes on otherwise without it all the same."""
    job = job_of(of(foreign.Counting))
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1, 2, 3)
        guard.save()
    assert caplog.text.count("optimizer.count changes during training, and no checkpoint has it") == 1


# --- the second oracle ----------------------------------------------------------------------------------------


def raw(root: object, depth: int = 6) -> Iterator[torch.Tensor]:
    """Every tensor that the garbage collector sees within so many steps, but for what hangs on classes and modules."""
    seen, line = {id(root)}, [root]
    for _ in range(depth):
        further: list[Any] = []
        for owner in line:
            if isinstance(owner, types.FunctionType):
                held = [owner.__closure__, owner.__defaults__, owner.__kwdefaults__, owner.__dict__]
            else:
                held = gc.get_referents(owner)
            for each in held:
                if id(each) not in seen and not isinstance(each, (type, types.ModuleType, nn.Module)):
                    seen.add(id(each))
                    further.append(each)
                    if isinstance(each, torch.Tensor):
                        yield each
        line = further


ACCEPTED: dict[str, Callable[[], Job]] = {
    **{f"torch's {name}": partial(job_of, make) for name, make in TORCHS.items()},
    **FOREIGN,
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_every_reachable_tensor_is_in_what_a_save_reads(kind: str, folder: Path) -> None:
    """Asked of the garbage collector after four steps, past the walk of the product."""
    job = ACCEPTED[kind]()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1, 2, 3)
        guard.save()
        state = guard._state
        read = {
            state_tensor.tensor.untyped_storage().data_ptr() for state_tensor in state.collect().state_tensors
        }
        trees = [t for part in state.parts for t in tensors_in(part.tree())]
    grads = {id(p.grad) for p in job.values["model"].parameters()}
    scratch = {id(getattr(job.values["optimizer"], "_dummy_overflow_buf", None))}
    found = 0
    for tensor in raw(job.values["optimizer"]):
        if id(tensor) in grads | scratch or tensor.grad_fn is not None or not tensor.numel():
            continue
        found += 1
        in_a_tree = any(t.shape == tensor.shape and torch.equal(t, tensor.detach()) for t in trees)
        assert tensor.untyped_storage().data_ptr() in read or in_a_tree, (
            f"{tuple(tensor.shape)} of {kind} is not saved"
        )
    assert found >= 4, "the parameters at least"


# --- the walk -------------------------------------------------------------------------------------------------


class Holder:
    """Has whatever it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def ways(root: object, *saved: torch.Tensor) -> list[str]:
    return unsaved("o", root, SavedTensors(saved), {id(root)})


def test_nothing_else_is_taken_for_state() -> None:
    """What the documented list leaves out, each reached from the optimizer."""
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    dataset = torch.utils.data.TensorDataset(torch.ones(9))

    @lru_cache
    def cached(number: int) -> torch.Tensor:
        return torch.full((2,), float(number))

    cached(3)
    holder = Holder(
        grad=weight.grad,
        part=weight.detach()[1:],
        graph=weight * 2,
        nothing=torch.empty(0),
        meta=torch.empty(4, device="meta"),
        defaults={"lr": torch.ones(1)},
        _dummy_overflow_buf=torch.zeros(1),
        found_inf=torch.zeros(1),
        loader=torch.utils.data.DataLoader(dataset),
        loading=iter(torch.utils.data.DataLoader(dataset)),
        cached=cached,
        module=torch,
        cls=Holder,
        _optimizer_step_pre_hooks={0: lambda: weight.new_ones(3)},
    )
    vars(weight)["main_grad"] = torch.ones(3)
    vars(holder)["weight"] = weight
    assert ways(holder, weight) == []


def test_everything_else_is() -> None:
    """Wherever Python can hide a tensor within six steps."""
    one = torch.ones(2)

    class Slotted:
        __slots__ = ("held",)

        def __init__(self, held: object) -> None:
            self.held = held

    def with_default(held: torch.Tensor = one.clone()) -> torch.Tensor:  # noqa: B008
        return held

    class Bound:
        def __init__(self) -> None:
            self.held = one.clone()

        def method(self) -> None: ...

    model = nn.BatchNorm1d(2, affine=False)
    hidden: dict[str, Any] = {
        "attribute": one.clone(),
        "deep": [{"a": ({"b": one.clone()},)}],
        "key": {one.clone(): 1},
        "slot": Slotted(one.clone()),
        "default": with_default,
        "method": Bound().method,
        "gradient_of_before": {"grad": one.clone()},
        "model": model,
        "scaler": torch.amp.GradScaler("cpu"),
        "generator": (each for each in [one.clone()]),
    }
    for name, value in hidden.items():
        assert len(ways(Holder(**{name: value}))) >= 1, name
    assert ways(Holder(deep=hidden["deep"])) == ["o.deep[0]['a'][0]['b']"]
    assert ways(Holder(model=model)) == [
        "o.model.running_mean",
        "o.model.running_var",
        "o.model.num_batches_tracked",
    ]


def test_views_of_half_a_memory_do_not_stand_for_the_other() -> None:
    """Only some padding may be in nobody's."""
    memory = torch.zeros(1000)
    assert ways(Holder(memory=memory), memory[:500]) == ["o.memory"]
    assert ways(Holder(memory=memory), memory[:500], memory[500:990]) == []


def test_the_walk_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much hangs there: what is near is looked at first."""
    monkeypatch.setattr(reachable, "MOST", 1000)
    many = [[object() for _ in range(100)] for _ in range(100)]
    assert ways(Holder(many=many, near=torch.ones(1))) == ["o.near"]
    assert ways(Holder(many=many, far=[[[torch.ones(1)]]])) == []


def test_the_page_has_the_list() -> None:
    """What is left out is written down, word for word."""
    page = Path(__file__).parents[4].joinpath("docs/reference/registered.md").read_text()
    assert [what for what in EXEMPT if what not in page] == []


def test_guarding_leaves_the_run_as_it_was(folder: Path) -> None:
    """The looks draw nothing and change nothing."""
    plain, looked = job_of(of(foreign.Shampoo)), None
    for number in range(4):
        plain.step(number)
    expected = plain.bits()
    looked = job_of(of(foreign.Shampoo))
    with guarded(folder, looked.values) as guard:
        guard.restore()
        step_on(guard, looked, 0, 1, 2, 3)
        assert different(looked.bits(), expected) == []
