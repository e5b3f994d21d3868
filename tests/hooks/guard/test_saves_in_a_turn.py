"""`guard.save()` at every place of a turn: exact at the boundary, and of the boundary once the next turn has begun."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks.guard import Guard  # noqa: E402
from spotguard.hooks.state.parts.loaders import ResumableLoader  # noqa: E402
from spotguard.providers.clock import SystemClock  # noqa: E402
from spotguard.providers.errors import SpotguardError, UsageError  # noqa: E402
from tests.fakes.store import FakeStore  # noqa: E402
from tests.fakes.training import (  # noqa: E402
    PATIENCE,
    Job,
    different,
    finished,
    guarded,
    seed,
    step_on,
    trajectory,
)
from tests.fakes.two_guards import on_all, two_guards  # noqa: E402
from tests.tiers import few_fast  # noqa: E402

pytestmark = pytest.mark.torch

TOTAL, AT = 7, 3
#: The places of a turn, from the boundary to the optimizer.
PLACES = ("boundary", "batch", "noted", "forward", "backward", "again")


Save = Callable[[], object]


class Gone(Exception):
    """The machine has gone."""


def loaded() -> Job:
    """A network with batch statistics and dropout, a loader with 5 batches a pass, and notes."""
    seed()
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.arange(80.0).reshape(20, 4) / 80
    loader = ResumableLoader(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    notes: dict[str, Any] = {"seen": 0, "best": {"loss": 9.0}}
    job = Job({"model": model, "optimizer": optimizer, "loader": loader, "notes": notes})
    batches: Iterator[Any] = iter(())

    def step(number: int) -> None:
        nonlocal batches
        job.at("boundary", number)
        if (batch := next(batches, None)) is None:
            batches = iter(loader)
            batch = next(batches)
        job.at("batch", number)
        notes["seen"] += 1
        job.at("noted", number)
        loss = model(batch).square().mean()
        job.at("forward", number)
        optimizer.zero_grad()
        loss.backward()
        job.at("backward", number)
        model(batch).square().mean().backward()
        job.at("again", number)
        optimizer.step()
        job.at("stepped", number)

    job.step = step
    return job


def bits_of(job: Job) -> dict[str, int]:
    return {key: bits for key, bits in job.bits().items() if not key.startswith("loader.")}


def uninterrupted() -> dict[str, int]:
    job = loaded()
    for number in range(TOTAL):
        job.step(number)
    return bits_of(job)


def saved_at(store: Any, place: str, call: Callable[[Guard], object], job: Job | None = None) -> None:
    """Train to a place of a turn, call there, and lose the machine."""
    job = job or loaded()

    def at(now: str, number: int) -> None:
        if (now, number) == (place, AT):
            call(guard)
            raise Gone

    with guarded(store, job.values) as guard:
        done, job.at = guard.restore(), at
        with pytest.raises(Gone):
            step_on(guard, job, *range(done, TOTAL))


def resumed(store: Any) -> tuple[int, dict[str, int]]:
    job = loaded()
    seed(99)
    with guarded(store, job.values) as guard:
        done = guard.restore()
        step_on(guard, job, *range(done, TOTAL))
    return done, bits_of(job)


def plainly(save: Save) -> None:
    save()


def nested(save: Save) -> None:
    def inner() -> None:
        with nullcontext():
            save()

    inner()


def in_a_generator(save: Save) -> None:
    next(each for each in (save() for _ in range(2)))


def after_an_error(save: Save) -> None:
    try:
        raise ValueError("no loss")
    except ValueError:
        save()


def in_a_thread(save: Save) -> None:
    saver = threading.Thread(target=save)
    saver.start()
    saver.join(PATIENCE)
    assert not saver.is_alive()


class Handler:
    """A handler with a state of its own."""

    def __init__(self, save: Save) -> None:
        self.save = save

    def __call__(self, *args: Any) -> None:
        self.save()


@contextmanager
def handled_by(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def by_a_signal(save: Save) -> None:
    with handled_by(Handler(save)):
        signal.raise_signal(signal.SIGUSR1)


def by_a_function_for_a_signal(save: Save) -> None:
    def handler(signum: int, frame: Any) -> None:
        save()

    with handled_by(functools.partial(handler)):
        signal.raise_signal(signal.SIGUSR1)


CALLS = (
    plainly,
    nested,
    in_a_generator,
    after_an_error,
    in_a_thread,
    by_a_signal,
    by_a_function_for_a_signal,
)


@pytest.mark.parametrize("call", few_fast(CALLS, 3))
@pytest.mark.parametrize("place", PLACES)
def test_a_run_resumed_from_a_save_is_the_uninterrupted_one(
    place: str, call: Callable[[Save], object], caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    saved_at(store, place, lambda guard: call(guard.save))
    lines = [line for line in caplog.messages if "SG405" in line]
    if place == "boundary":
        assert lines == []
    else:
        where: dict[Any, str] = dict.fromkeys(
            (by_a_signal, by_a_function_for_a_signal), "in a signal's handler"
        )
        where[in_a_thread] = "in another thread"
        begun = "in the middle of a turn, because loader has delivered a batch"
        assert len(lines) == 1
        assert where.get(call, begun) in lines[0]
        assert ("notes['seen'] (3, now 4)" in lines[0]) == (place != "batch")
        assert ("model.1.running_mean" in lines[0]) == (place not in ("batch", "noted"))
        assert "loader (batch 3, now 4)" in lines[0]
        assert "it saves step 3" in lines[0]
    done, bits = resumed(store)
    assert done == AT
    assert different(bits, uninterrupted()) == []


def test_an_evaluation_and_a_note_behind_the_boundary_are_in_the_save(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loader of the evaluation draws a seed, and both are of the uninterrupted run."""
    held_out = torch.utils.data.DataLoader(torch.arange(80.0).reshape(20, 4) / 80, batch_size=4)

    def evaluate(job: Job, best: dict[str, float]) -> None:
        model = job.values["model"].eval()
        with torch.no_grad():
            loss = sum(float(model(batch).square().mean()) for batch in held_out)
        model.train()
        best["loss"] = min(best["loss"], loss)

    whole = loaded()
    for number in range(TOTAL):
        whole.step(number)
        if number + 1 == AT:
            evaluate(whole, whole.values["notes"]["best"])
    store, job = FakeStore(), loaded()

    def save(guard: Guard) -> None:
        evaluate(job, job.values["notes"]["best"])
        guard.save()

    saved_at(store, "boundary", save, job)
    assert "SG405" not in caplog.text
    assert different(resumed(store)[1], bits_of(whole)) == []


def test_each_value_that_a_save_leaves_out_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    job = loaded()
    with guarded(FakeStore(), job.values) as guard:

        def at(place: str, number: int) -> None:
            if place in ("batch", "forward"):
                guard.save()

        job.at = at
        guard.restore()
        step_on(guard, job, *range(3))
    lines = [line for line in caplog.messages if "SG405" in line]
    assert [("model.1" in line, "loader" in line) for line in lines] == [(False, True), (True, True)]


def test_a_turn_that_has_moved_generators_alone_is_left_out_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The resumed run draws the same numbers again."""

    def make() -> Job:
        seed()
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job = Job({"model": model, "optimizer": optimizer})

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().sum().backward()
            job.at("backward", number)
            optimizer.step()

        job.step = step
        return job

    store = FakeStore()
    saved_at(store, "backward", Guard.save, make())
    assert "SG405" not in caplog.text
    done, bits = finished(store, make, TOTAL)
    assert done == AT
    assert different(bits, trajectory(make, TOTAL)[-1]) == []


@pytest.mark.parametrize("call", [plainly, in_a_thread, by_a_signal])
def test_half_a_step_is_saved_from_nowhere(call: Callable[[Save], object]) -> None:
    store, errors = FakeStore(), []

    def refused(guard: Guard) -> None:
        with pytest.raises(UsageError, match="in the middle of a step") as error:
            guard.save()
        errors.append(error)

    saved_at(store, "stepped", lambda guard: call(lambda: refused(guard)))
    assert len(errors) == 1
    assert resumed(store)[0] == 0


class Own:
    """An optimizer that torch's hooks do not reach, so saves wait for the boundary, and no boundary makes copies."""

    param_groups: ClassVar[list[dict[str, Any]]] = []

    def step(self) -> None:
        """Nothing is to do."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is in it."""


@pytest.mark.parametrize("place", ["batch", "again"])
def test_a_boundary_without_copies_is_not_saved_from_its_next_turn(place: str) -> None:
    store, job = FakeStore(), loaded()
    job.values["own"] = Own()

    def refused(guard: Guard) -> None:
        with pytest.raises(
            UsageError, match=r"step 3 cannot be saved .*own.*: call it right after guard\.step\(\)"
        ):
            guard.save()

    saved_at(store, place, refused, job)
    assert resumed(store)[0] == 0


def test_a_large_buffer_that_forward_moves_is_refused_by_name() -> None:
    """It is read in place, so the boundary has no copy of it."""
    store, job = FakeStore(), loaded()
    table = torch.zeros(3 * 2**20)
    job.values["table"] = table

    def refused(guard: Guard) -> None:
        table.add_(1)
        with pytest.raises(UsageError, match="a tensor was changed in place"):
            guard.save()

    saved_at(store, "again", refused, job)
    assert resumed(store)[0] == 0


def test_a_handler_that_interrupts_the_guard_is_told_to_wait() -> None:
    """The guard would wait for itself."""
    errors: list[str] = []
    armed = False

    class Interrupting(SystemClock):
        def monotonic(self) -> float:
            if armed and threading.current_thread() is threading.main_thread() and not guard.in_step:
                signal.raise_signal(signal.SIGUSR1)
            return super().monotonic()

    def handler(signum: int, frame: Any) -> None:
        nonlocal armed
        armed = False
        with pytest.raises(UsageError) as error:
            guard.save()
        errors.append(str(error.value))

    job = loaded()
    with guarded(FakeStore(), job.values, clock=Interrupting()) as guard, handled_by(handler):
        guard.restore()
        job.step(0)
        armed = True
        guard.step()
        assert "set a flag there, and call guard.save() after guard.step()" in errors[0]
        assert guard.save().step == 1


def test_a_handler_that_the_script_calls_itself_saves_what_is_there(caplog: pytest.LogCaptureFixture) -> None:
    store, job = FakeStore(), loaded()

    def save(guard: Guard) -> None:
        def handler(*_: Any) -> None:
            guard.save()

        job.values["notes"]["best"]["loss"] = 1.0
        with handled_by(handler):
            handler()

    saved_at(store, "boundary", save, job)
    assert "SG405" not in caplog.text
    with guarded(store, (again := loaded()).values) as guard:
        guard.restore()
    assert again.values["notes"]["best"] == {"loss": 1.0}


def test_another_thread_takes_the_place_of_one_that_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A script may train in a thread, and save behind it."""
    job = loaded()
    with guarded(FakeStore(), job.values) as guard:

        def train() -> None:
            guard.restore()
            step_on(guard, job, 0, 1)

        trainer = threading.Thread(target=train)
        trainer.start()
        trainer.join(PATIENCE)
        job.values["notes"]["best"]["loss"] = 1.0
        assert guard.save().step == 2
        assert "SG405" not in caplog.text


def test_a_rank_saves_in_no_other_thread() -> None:
    with two_guards([FakeStore(), FakeStore()]) as trainers:

        def refused(rank: int) -> str:
            trainers[rank].step()
            said: list[str] = []

            def save() -> None:
                try:
                    trainers[rank].guard.save()
                except SpotguardError as error:
                    said.append(str(error))

            saver = threading.Thread(target=save)
            saver.start()
            saver.join(PATIENCE)
            return said[0]

        assert all("ranks save one step together" in each for each in on_all(refused))


# --- the signs of a turn ---


def begun_after(what: Callable[[Job], object]) -> str:
    job = loaded()
    with guarded(FakeStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        what(job)
        return guard._state.begun()


def forward(job: Job) -> Any:
    return job.values["model"](torch.ones(4, 4)).square().mean()


def whole_pass(job: Job) -> None:
    for _ in job.values["loader"]:
        pass


def graph_without_gradients(job: Job) -> None:
    job.values["model"].eval()
    x = torch.ones(4, 4, requires_grad=True)
    torch.autograd.grad(job.values["model"](x).sum(), x)


def averaged(job: Job) -> None:
    torch.optim.swa_utils.AveragedModel(job.values["model"]).update_parameters(job.values["model"])


QUIET: dict[str, Callable[[Job], object]] = {
    "nothing": lambda job: None,
    "a pass over the loader to its end": whole_pass,
    "a new iterator": lambda job: iter(job.values["loader"]),
    "no gradients": lambda job: job.values["optimizer"].zero_grad(),
    "zeros": lambda job: job.values["optimizer"].zero_grad(set_to_none=False),
    "a graph without gradients": graph_without_gradients,
    "an averaged model": averaged,
    "numbers": lambda job: torch.rand(3),
    "a note": lambda job: job.values["notes"].update(seen=9),
    "a weight": lambda job: job.values["model"][0].weight.data.clamp_(-0.1, 0.1),
    "another model in its place": lambda job: job.values["model"].load_state_dict(
        {key: value + 1 for key, value in job.values["model"].state_dict().items()}
    ),
    "another type of numbers": lambda job: job.values["model"].double(),
    "another rate": lambda job: job.values["optimizer"].param_groups[0].update(lr=0.3),
}
SIGNS: dict[str, tuple[Callable[[Job], object], str]] = {
    "a batch": (lambda job: next(iter(job.values["loader"])), "loader has delivered a batch"),
    "forward": (forward, "model.1.running_mean has moved"),
    "a buffer assigned anew": (
        lambda job: setattr(job.values["model"][1], "running_var", torch.ones(8)),
        "model.1.running_var has moved",
    ),
    "backward": (
        lambda job: forward(job).backward(),
        "the gradient of model.0.bias has changed",
    ),
    "backward behind zero_grad": (
        lambda job: (job.values["optimizer"].zero_grad(), forward(job).backward()),
        "the gradient of model.0.bias has changed",
    ),
    "backward of the last layer alone": (
        lambda job: job.values["model"][3](torch.ones(8)).backward(),
        "the gradient of model.3.bias has changed",
    ),
    "an optimizer": (lambda job: job.values["optimizer"].step(), "an optimizer has stepped"),
}


@pytest.mark.parametrize("what", QUIET.values(), ids=QUIET)
def test_no_turn_begins_by_work_that_belongs_to_the_boundary(what: Callable[[Job], object]) -> None:
    assert begun_after(what) == ""


@pytest.mark.parametrize(("what", "sign"), SIGNS.values(), ids=SIGNS)
def test_a_turn_begins_with_its_first_sign(what: Callable[[Job], object], sign: str) -> None:
    assert begun_after(what) == sign


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_look_at_a_batch_before_the_first_turn_is_exact(
    interrupted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A save in the first turn takes the restored position, and not that of the look."""
    store = FakeStore()
    for total in (1, TOTAL) if interrupted else (TOTAL,):
        job = loaded()
        with guarded(store, job.values) as guard:
            guard.restore()
            next(iter(job.values["loader"]))
            for number in guard.steps(total):
                if interrupted and total == 1:
                    guard.save()
                    break
                job.step(number)
    whole = loaded()
    next(iter(whole.values["loader"]))
    for number in range(TOTAL):
        whole.step(number)
    assert different(bits_of(job), bits_of(whole)) == []
    assert "is in the middle" not in caplog.text


def test_the_first_turn_begins_as_any_other() -> None:
    job = loaded()
    with guarded(FakeStore(), job.values) as guard:
        guard.restore()
        assert guard._state.begun() == ""
        job.values["model"].eval()
        forward(job).backward()
        assert "gradient" in guard._state.begun()


@pytest.mark.parametrize("restored", [0, 2])
def test_weights_that_nothing_marked_are_refused_as_step_0_alone(restored: int) -> None:
    """Without a torch optimizer no step is seen. A restart behind the last step loads its best weights once more, and saves."""
    store, model = FakeStore(), torch.nn.Linear(4, 1)
    with guarded(store, {"model": model}) as guard:
        guard.restore()
        for _ in range(restored):
            model.weight.data += 1
            guard.step()
        guard.save()
    with guarded(store, {"model": model}) as guard:
        assert guard.restore() == restored
        model.weight.data += 1
        with nullcontext() if restored else pytest.raises(UsageError, match="would save trained weights"):
            guard.save()
    markers = [key for key in store.objects if key.endswith("COMMIT.json")]
    attempt = 2 if restored else 1  # its checkpoint of the same step takes the place of the first one's
    assert [f"-{attempt:04}-" in key for key in markers] == [True]
