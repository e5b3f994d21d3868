"""The work of the training thread, read from its stack: the phase, the line of the script, and since when it stands still."""

from __future__ import annotations

import code
import multiprocessing.pool
import pdb
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch.distributed._functional_collectives import wait_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import spotguard
from spotguard.hooks.ipc.failures import progress
from spotguard.hooks.ipc.failures.phase_times import ENOUGH, LEAST
from spotguard.hooks.ipc.failures.progress import ProgressSeen, TrainingProgress
from spotguard.hooks.ipc.failures.thread_place import of_library, stacks
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.torch


class Waits:
    """A place where a thread waits until it is let go."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.there.set()
        self.go.wait()


class Samples(Dataset[torch.Tensor]):
    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        self._waits()
        return torch.zeros(1)


class Turns(Dataset[torch.Tensor]):
    """Each of its samples waits until it is let go."""

    def __init__(self, turns: list[Waits]) -> None:
        self._turns = turns

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._turns[index]()
        return torch.zeros(1)


class Waiting(torch.autograd.Function):
    waits: Waits

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        Waiting.waits()
        return grads[0]


class Module(torch.nn.Module):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def forward(self) -> None:
        self._waits()


class Optimizer(torch.optim.SGD):
    def __init__(self, waits: Waits) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))])
        self._waits = waits

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self._waits()


def backward(waits: Waits) -> None:
    Waiting.waits = waits
    Waiting.apply(torch.zeros(1, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


class Operations(TorchDispatchMode):
    """The operations of the thread that enters it wait."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._waits()
        return args[0]


def collective(waits: Waits) -> None:
    """A DTensor's, such as FSDP2 has for the norm of its gradients."""
    one = torch.zeros(1)
    with Operations(waits):
        wait_tensor(one)


def process(waits: Waits) -> None:
    """The script waits for a program that it has started."""

    class Program(subprocess.Popen[bytes]):
        def _wait(self, timeout: float | None) -> int:
            waits()
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]

    Program(["true"]).wait()


PLACES: dict[str, Callable[[Waits], object]] = {
    "other": lambda waits: waits(),
    "data": lambda waits: next(iter(DataLoader(Samples(waits)))),
    "forward": lambda waits: Module(waits)(),
    "backward": backward,
    "collective": collective,
    "optimizer": lambda waits: Optimizer(waits).step(),
    "process": process,
}


class Thread:
    """A training thread at a place, and what its progress is."""

    def __init__(
        self, place: Callable[[Waits], object], *others: Waits, evaluates: bool = False, trains: bool = True
    ) -> None:
        self._others, self._trains = others, trains
        self.clock, self.step, self.work = ManualClock(), 0, 0.0
        #: Processor seconds of other threads, and the store's moves.
        self.others_work, self.moves, self.answers = 0.0, 0, 0
        self.progress = TrainingProgress(
            lambda: self.step,
            self.clock,
            lambda: evaluates,
            lambda thread: self.work,
            all_worked=lambda: self.work + self.others_work,
            moves=lambda: self.moves,
            answers=lambda: self.answers,
        )
        self.waits = Waits()
        self._thread = threading.Thread(target=self._run, args=(place,))

    def _run(self, place: Callable[[Waits], object]) -> None:
        if self._trains:
            self.progress.begin()
        else:
            self.progress.prepare()
        place(self.waits)

    @property
    def idents(self) -> list[int | None]:
        return [self._thread.ident]

    @contextmanager
    def at_place(self) -> Iterator[Thread]:
        self._thread.start()
        self.waits.there.wait()
        try:
            yield self
        finally:
            for each in (self.waits, *self._others):
                each.go.set()
            self._thread.join()

    def later(self, seconds: float = 2.0) -> ProgressSeen:
        self.clock.advance(seconds)
        return self.progress.look()


@pytest.mark.parametrize("phase", PLACES)
def test_the_phase_is_where_the_thread_stands(phase: str) -> None:
    with Thread(PLACES[phase]).at_place() as thread:
        found = thread.later()
        assert (found.phase, found.still) == (phase, 0.0)
        assert found.where.startswith("test_progress.py:")
        assert thread.later().still == 2.0


PACKAGE = str(Path(spotguard.__file__).parent)
GATE = f"{PACKAGE}/hooks/control/gate.py"


@pytest.mark.parametrize("file", [pdb.__file__, GATE])
def test_a_thread_held_on_purpose_counts_wherever_it_was_called_from(file: str) -> None:
    """A person looks into `forward`; the gate parks a thread in the optimizer's hook."""
    found: dict[str, Callable[[Waits], None]] = {}
    exec(compile("def holds(waits): waits()", file, "exec"), found)
    holds = found["holds"]

    class Held(Module):
        def forward(self) -> None:
            holds(self._waits)

    with Thread(lambda waits: Held(waits)()).at_place() as thread:
        assert thread.later().phase == "save"


class Work(torch.distributed.distributed_c10d.Work):
    """A collective that waits for other ranks."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def wait(self, timeout: Any = None) -> bool:
        self._waits()
        return True


def shards(waits: Waits) -> None:
    """FSDP2 gathers a layer's weights inside `forward`, and waits there for the ranks that have the other shards."""
    fsdp = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_collectives")

    class Layer(Module):
        def forward(self) -> None:
            gathered = fsdp.AllGatherResult(torch.zeros(0), None, Work(self._waits), [], [], [])
            fsdp.foreach_all_gather_copy_out(gathered, [], None)

    with suppress(AttributeError):  # there is no group, which is asked for once the wait is over
        Layer(waits)()


def buffers(waits: Waits) -> None:
    """DDP's forward waits for the first rank's buffers, such as BatchNorm's, before that of the model."""

    class Model(DistributedDataParallel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.module = torch.nn.Identity()
            self._use_python_reducer, self._lazy_init_ran = False, False

        def _lazy_init(self) -> None:
            waits()
            self._delay_all_reduce_all_params = True

    Model()._pre_forward()  # type: ignore[no-untyped-call]


def pipeline(waits: Waits) -> None:
    """A stage of a pipeline waits for what the stage before it computes."""
    pytest.importorskip("torch.distributed.pipelining.schedules")._wait_batch_p2p([Work(waits)])


def weights(waits: Waits) -> None:
    """ZeRO's optimizer waits for the weights that other ranks have stepped."""
    zero = pytest.importorskip("torch.distributed.optim.zero_redundancy_optimizer").ZeroRedundancyOptimizer
    optimizer = SimpleNamespace(world_size=1, _broadcast_params_from_rank=lambda rank: [Work(waits)])

    class Stepped(Optimizer):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            zero._sync_params(optimizer)

    Stepped(waits).step()


def plan(waits: Waits) -> None:
    """torch's distributed save waits for each rank's part of its plan."""
    within("/torch/distributed/checkpoint/state_dict_saver.py", "/torch/distributed/distributed_c10d.py")(
        waits
    )


@pytest.mark.parametrize("place", [shards, buffers, pipeline, weights, plan])
def test_a_wait_for_other_ranks_is_a_collective_wherever_it_is(place: Callable[[Waits], None]) -> None:
    """Else the rank that waits would be named as the cause of a stall, or excuse the one that is."""
    with Thread(place).at_place() as thread:
        assert thread.later().phase == "collective"


def test_a_model_in_evaluation_evaluates() -> None:
    with Thread(PLACES["forward"], evaluates=True).at_place() as thread:
        assert thread.later().phase == "evaluation"


@pytest.mark.parametrize("what", ["step", "computes"])
def test_a_thread_that_moves_does_not_stand_still(what: str) -> None:
    """It completes steps; or it computes, and is found at more than one place."""
    two = [Waits(), Waits()]

    def place(waits: Waits) -> None:
        waits()
        two[0]()
        two[1]()

    with Thread(place, *two).at_place() as thread:
        assert thread.later().still == 0.0
        if what == "step":
            thread.step += 1
        else:
            thread.waits.go.set()
            two[0].there.wait()
            thread.work += 5.0
        assert thread.later().still == 0.0
        assert thread.later().still == 2.0


class Result(multiprocessing.pool.ApplyResult[None]):
    """A result that its pool has not computed yet."""

    def __init__(self, waits: Waits) -> None:
        super().__init__(SimpleNamespace(_cache={}), None, None)  # type: ignore[arg-type]
        self._waits = waits

    def wait(self, timeout: float | None = None) -> None:
        self._waits()

    def ready(self) -> bool:
        return False


def test_a_script_may_have_the_name_of_a_debugger() -> None:
    """Such as one that reads the Protein Data Bank."""
    with Thread(within("/w/proteins/pdb.py")).at_place() as thread:
        assert thread.later().phase == "other"


@pytest.mark.parametrize(("file", "is_library"), [("/w/spotguard/train.py", False), (GATE, True)])
def test_a_script_may_lie_in_a_folder_of_spotguards_name(file: str, is_library: bool) -> None:
    assert of_library(file) == is_library


def test_a_wait_for_a_pool_is_one_for_a_program() -> None:
    """It shows no progress here, either."""

    def place(waits: Waits) -> None:
        with suppress(multiprocessing.TimeoutError):
            Result(waits).get()

    with Thread(place).at_place() as thread:
        assert thread.later().phase == "process"


def test_a_wait_for_an_executor_is_one_for_a_program() -> None:
    class Turn(threading.Condition):
        waits: Waits

        def wait(self, timeout: float | None = None) -> bool:
            self.waits()
            return False

    def place(waits: Waits) -> None:
        future: Future[None] = Future()
        future._condition = Turn()
        future._condition.waits = waits
        with suppress(TimeoutError):
            future.result()

    with Thread(place).at_place() as thread:
        assert thread.later().phase == "process"


def test_time_after_the_end_of_training_has_no_usual_length() -> None:
    """Such as an upload. A step that follows ends that."""
    turns = [Waits() for _ in range(3)]

    def place(waits: Waits) -> None:
        waits()
        for each in turns:
            each()

    with Thread(place, *turns).at_place() as thread:

        def turn(step: int) -> float:
            thread.step = step
            return thread.later().limit

        for step in range(30):
            assert turn(step) == (-1.0 if step < ENOUGH else LEAST)
        thread.progress.end()
        assert [thread.later().limit for _ in range(3)] == [-1.0] * 3
        assert turn(31) >= LEAST


def test_a_rank_that_has_ended_has_the_usual_limit_in_a_collective() -> None:
    """It waits there for a rank that may hang in its last step. Only a wait of its own may take long."""
    with Thread(collective).at_place() as thread:
        for thread.step in range(ENOUGH + 2):
            usual = thread.later().limit
        thread.progress.end()
        ended = thread.later()
        assert (ended.phase, ended.limit) == ("collective", usual)
        assert usual >= LEAST


def test_a_rank_that_has_ended_may_compute_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an archiver's native code does. In training, it might wait for a GPU, and so for another rank."""
    monkeypatch.setattr(progress, "_uses_gpu", lambda: True)
    monkeypatch.setattr(progress, "_has_peers", lambda: True)
    with Thread(PLACES["other"]).at_place() as thread:
        for thread.step in range(ENOUGH + 2):
            thread.later()
        thread.progress.end()
        thread.work += 2.0
        ended = thread.later()
    assert (ended.phase, ended.limit) == ("collective", -1.0)


# --- before training ---


def within(*files: str) -> Callable[[Waits], object]:
    """A place below frames of these files, the outermost first."""

    def call(waits: Waits) -> object:
        inner: Callable[[], object] = waits
        for file in reversed(files):
            found: dict[str, Callable[[Callable[[], object]], object]] = {}
            exec(compile("def calls(inner): return inner()", file, "exec"), found)
            inner = partial(found["calls"], inner)
        return inner()

    return call


def test_a_wait_for_the_compiler_is_one_for_a_program() -> None:
    """A batch of another shape in the middle of training has workers compile for minutes."""
    compiler = Path(torch.__file__).parent / "_inductor" / "async_compile.py"
    assert compiler.exists()

    class Compiled(Module):
        def forward(self) -> None:
            within(str(compiler))(self._waits)

    with Thread(lambda waits: Compiled(waits)()).at_place() as thread:
        assert thread.later().phase == "process"


def test_training_inside_a_process_or_a_pool_is_no_wait_for_it() -> None:
    files = [
        "/usr/lib/python3.12/multiprocessing/process.py",
        "/usr/lib/python3.12/multiprocessing/pool.py",
        "/usr/lib/python3.12/concurrent/futures/thread.py",
    ]
    with Thread(within(*files)).at_place() as thread:
        assert thread.later().phase == "other"


RESTORE, STORE = f"{PACKAGE}/hooks/guard/guard.py", f"{PACKAGE}/hooks/restore/retrying_store.py"
RANKS, CLOCK = f"{PACKAGE}/hooks/consensus/barrier.py", f"{PACKAGE}/providers/clock.py"


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        pytest.param([], "start", id="the script's own work"),
        pytest.param([RESTORE, STORE], "start", id="a restore"),
        pytest.param([RESTORE, RANKS, CLOCK], "ranks", id="a wait for the other ranks"),
        pytest.param([RESTORE, RANKS, STORE, CLOCK], "start", id="what the other ranks wait for"),
        pytest.param(
            ["/torch/distributed/distributed_c10d.py"], "collective", id="a barrier of the script's"
        ),
        pytest.param([RESTORE, GATE], "save", id="parked by a notice"),
    ],
)
def test_before_training_a_thread_stands_still_too(files: list[str], phase: str) -> None:
    with Thread(within(*files), trains=False).at_place() as thread:
        found = [thread.later() for _ in range(3)]
        assert [(each.phase, each.still, each.limit) for each in found] == [
            (phase, still, -1.0) for still in (2.0, 4.0, 6.0)
        ]
        assert found[0].where.startswith("test_progress.py:")


@pytest.mark.parametrize("what", ["moves", "others_work", "work"])
def test_a_restore_that_moves_does_not_stand_still(what: str) -> None:
    """The store sends bytes, or answers; other threads of the process compute, or this one does."""
    with Thread(within(RESTORE, STORE), trains=False).at_place() as thread:
        for _ in range(5):
            setattr(thread, what, getattr(thread, what) + 1)
            assert thread.later().still == 0.0
        assert thread.later().still == 2.0


def test_a_process_that_prepares_the_data_counts_while_it_runs_and_once_it_has_ended() -> None:
    """Its own time, and the start's wait for it: `Pool.map` stands at one place, and computes nothing."""
    began = progress.processor_seconds_of_all()
    works = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", works], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        runs = progress.processor_seconds_of_all()
    assert began + 0.4 < runs <= progress.processor_seconds_of_all() + 0.1


@pytest.mark.parametrize("what", ["moves", "others_work"])
def test_the_answer_to_a_stall_before_training_is_no_progress(what: str) -> None:
    """The stacks take a moment's work, and their record goes to the store."""
    with Thread(within(RESTORE, STORE), trains=False).at_place() as thread:
        thread.later()
        thread.answers += 1
        setattr(thread, what, 1)
        assert thread.later().still == 4.0
        setattr(thread, what, 2)
        assert thread.later().still == 0.0


def test_a_training_that_begins_counts_from_there_and_its_restored_steps_are_no_progress() -> None:
    with Thread(PLACES["other"], trains=False).at_place() as thread:
        assert thread.later(100.0).phase == "start"
        thread.step = 5000
        thread.progress.begin()  # by this thread, which stands outside all phases
        found = thread.later()
        assert (found.phase, found.still, found.limit) == ("other", 0.0, -1.0)


def test_a_training_that_begins_while_no_agent_asks_has_not_moved_in_the_future() -> None:
    with Thread(PLACES["other"], trains=False).at_place() as thread:
        thread.clock.advance(100.0)
        thread.progress.begin()
        assert thread.later(1.0).still >= 0.0


@pytest.mark.parametrize(
    ("gpu", "peers", "place", "phase"),
    [
        pytest.param(True, True, "other", "collective", id="a rank of several"),
        pytest.param(True, True, "data", "data", id="in its loader"),
        pytest.param(True, False, "other", "other", id="the only rank"),
        pytest.param(False, True, "other", "other", id="without a GPU it computes"),
    ],
)
def test_a_rank_that_waits_for_its_gpu_may_wait_for_another_rank(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, peers: bool, place: str, phase: str
) -> None:
    """NCCL's collectives return at once, and the thread spins where it first needs a result."""
    monkeypatch.setattr(progress, "_uses_gpu", lambda: gpu)
    monkeypatch.setattr(progress, "_has_peers", lambda: peers)
    with Thread(PLACES[place]).at_place() as thread:
        thread.later()
        thread.work += 2.0
        found = thread.later()
    assert (found.phase, found.still) == (phase, 2.0 * gpu)


def test_a_loader_that_delivers_batches_does_not_stand_still() -> None:
    """An evaluation completes no step, and computes little; its stack is found at one place, in the loader."""
    later = [Waits() for _ in range(3)]

    def place(waits: Waits) -> None:
        for _ in DataLoader(Turns([waits, *later])):
            pass

    with Thread(place, *later).at_place() as thread:
        thread.later()
        for before, turn in zip([thread.waits, *later], later, strict=False):
            assert thread.later().still == 2.0
            before.go.set()
            turn.there.wait()
            assert thread.later().still == 0.0
        assert thread.later(4.0).still == 4.0


def test_a_thread_that_polls_stands_still() -> None:
    """It is found at two places, and uses no processor."""
    second = Waits()

    def place(waits: Waits) -> None:
        waits()
        second()

    with Thread(place, second).at_place() as thread:
        thread.later()
        thread.waits.go.set()
        second.there.wait()
        assert thread.later().still == 2.0


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    with Thread(PLACES["other"]).at_place() as thread:
        thread.later()
        thread.later()
        assert thread.later(300.0).still < 10.0


def test_a_save_that_took_long_counts_not_against_what_follows() -> None:
    """A loader may need a minute for its first batch behind a save that waited five for its file system."""
    saves, loads = within(GATE), Waits()

    def place(waits: Waits) -> None:
        saves(waits)
        loads()

    with Thread(place, loads).at_place() as thread:
        for _ in range(150):
            assert thread.later().phase == "save"
        thread.waits.go.set()
        loads.there.wait()
        assert [(each.phase, each.still) for each in (thread.later(), thread.later())] == [
            ("other", 0.0),
            ("other", 2.0),
        ]


SITE = "/usr/lib/python3.12/site-packages"
KERNEL, SHELL = f"{SITE}/ipykernel/kernelapp.py", f"{SITE}/IPython/core/interactiveshell.py"
PYDEVD = f"{SITE}/debugpy/_vendored/pydevd/pydevd.py"
LOOP, PROMPT = "/usr/lib/python3.12/selectors.py", "/usr/lib/python3.13/_pyrepl/readline.py"


@pytest.mark.parametrize(
    ("places", "phase"),
    [
        pytest.param([(KERNEL, "start"), (LOOP, "select")], "", id="between two cells"),
        pytest.param(
            [(KERNEL, "start"), (SHELL, "run_code"), ("<ipython-input-1>", "<module>")],
            "other",
            id="in a cell",
        ),
        pytest.param(
            [
                (KERNEL, "start"),
                (f"{SITE}/ipywidgets/button.py", "click"),
                ("/tmp/ipykernel_7/1.py", "train"),
            ],
            "other",
            id="in a widget's function",
        ),
        pytest.param([(PROMPT, "multiline_input")], "", id="at a prompt"),
        pytest.param([("/w/train.py", "<module>"), (code.__file__, "raw_input")], "", id="in code.interact"),
        pytest.param([(PYDEVD, "run"), ("/w/train.py", "<module>")], "other", id="below VS Code's debugger"),
        pytest.param(
            [(PYDEVD, "run"), ("/w/train.py", "<module>"), (PYDEVD, "_do_wait_suspend")],
            "",
            id="at a breakpoint of VS Code",
        ),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_a_thread_that_waits_for_a_person_does_not_stand_still(
    monkeypatch: pytest.MonkeyPatch, places: list[tuple[str, str]], phase: str, trains: bool
) -> None:
    """Between two cells a person looks at a plot, for hours. At a breakpoint, at variables."""
    frame: Any = None
    for file, name in places:
        compiled = compile("", file, "exec").replace(co_name=name)
        frame = SimpleNamespace(f_code=compiled, f_lineno=1, f_lasti=0, f_locals={}, f_back=frame)
    with Thread(PLACES["other"], trains=trains).at_place() as thread:
        thread.later()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "_current_frames", lambda: dict.fromkeys(thread.idents, frame))
            for _ in range(100):
                found = thread.later()
        assert found.phase == (phase if trains or not phase else "start")
        assert (thread.later().still < 10.0) == (phase == "")


class Large:
    """Such as the activations of a function."""


def test_a_look_keeps_nothing_of_what_the_thread_lets_go() -> None:
    """Else memory of the device would be freed later than without an agent."""
    second, large = Waits(), []

    def computes(waits: Waits) -> None:
        local = Large()
        large.append(weakref.ref(local))
        waits()

    def place(waits: Waits) -> None:
        computes(waits)
        second()

    def worked(thread: threading.Thread) -> float:
        """Reading a file of /proc lets the thread go on."""
        training.waits.go.set()
        second.there.wait()
        kept.append(large[0]() is not None)
        return 0.0

    kept: list[bool] = []
    training = Thread(place, second)
    training.progress = TrainingProgress(lambda: 0, training.clock, lambda: False, worked)
    with training.at_place():
        training.later()
    assert kept == [False]


def test_nothing_is_known_before_training_and_after_it() -> None:
    thread = Thread(PLACES["other"])
    assert thread.later() == ProgressSeen()
    with thread.at_place():
        pass
    assert thread.later() == ProgressSeen()


def test_stacks_have_places_and_no_values() -> None:

    def place(waits: Waits, secret: str = "hunter2") -> None:
        assert secret
        next(iter(DataLoader(Samples(waits))))

    with Thread(place).at_place():
        main, *others = stacks()
    assert main.startswith("MainThread:\n")
    assert any("dataloader.py" in each and "in place" in each for each in others)
    assert "hunter2" not in "".join([main, *others])
