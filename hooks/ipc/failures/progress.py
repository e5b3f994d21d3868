"""The phase of training, and for how long it has stood still: read from the training thread's stack when its agent is told.

Nothing runs on the training thread, and nothing is paid per step. A look takes about 20 µs, every two seconds.

Training moves while steps complete, while its loader delivers batches, while its thread computes, or while its stack is found at
more than a few places. A thread that waits in vain has few (a loop that polls a queue has two or three), and uses no processor. An
evaluation over a slow loader completes no step and computes little (seen: 0.4 % of a core, and a false alarm after a minute).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ....providers.clock import Clock
from ....providers.redaction import redacted_text
from ..messages import START, START_WAIT
from .phase_times import PhaseTimes

#: The phase, by the end of a file's path and a function of it; "" for any function. The outermost frame that is found counts.
_PLACES: tuple[tuple[str, str, str], ...] = (
    ("spotguard/hooks/guard/guard.py", "save", "save"),
    ("spotguard/hooks/guard/guard.py", "step", "save"),
    ("spotguard/hooks/guard/guard.py", "restore", "save"),
    ("spotguard/hooks/guard/guard.py", "close", "save"),
    ("torch/utils/data/dataloader.py", "__next__", "data"),
    ("torch/utils/data/dataloader.py", "__iter__", "data"),
    ("torchdata/stateful_dataloader/stateful_dataloader.py", "__next__", "data"),
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "", "backward"),
    ("torch/optim/optimizer.py", "", "optimizer"),
    ("torch/distributed/distributed_c10d.py", "", "collective"),
    # DTensors, as the norm of FSDP2's gradients; and FSDP2's wait for the other ranks' shards of a layer.
    ("torch/distributed/_functional_collectives.py", "", "collective"),
    ("fsdp/_fully_shard/_fsdp_collectives.py", "", "collective"),
    # DDP's, for the buffers of the first rank, such as BatchNorm's; ZeRO's, for the other ranks' weights; and a pipeline's.
    ("torch/nn/parallel/distributed.py", "_pre_forward", "collective"),
    ("torch/distributed/optim/zero_redundancy_optimizer.py", "_sync_params", "collective"),
    ("torch/distributed/optim/zero_redundancy_optimizer.py", "wait_for_broadcasts", "collective"),
    ("torch/distributed/pipelining/schedules.py", "_wait_batch_p2p", "collective"),
    ("torch/distributed/checkpoint/state_dict_saver.py", "", "save"),
    ("torch/serialization.py", "save", "save"),
    ("safetensors/torch.py", "save_file", "save"),
    ("transformers/modeling_utils.py", "save_pretrained", "save"),
    ("fabric/utilities/cloud_io.py", "_atomic_save", "save"),  # Lightning's: it uploads behind torch.save
    ("torch/nn/modules/module.py", "_call_impl", "forward"),
    # A program, or a pool, that scores or uploads shows no progress here, for as long as it runs.
    ("/subprocess.py", "", "process"),
    ("/multiprocessing/process.py", "join", "process"),
    ("/multiprocessing/pool.py", "get", "process"),
    ("/multiprocessing/pool.py", "next", "process"),
    ("/multiprocessing/pool.py", "join", "process"),
)
#: Files of loaders whose iterators count the batches that they have delivered.
_LOADERS = ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
#: Where a thread may wait for as long as it takes, whatever it was called from: the gate parks it, its error is saved, or a person
#: holds it.
_HOLDS = (
    "spotguard/hooks/control/gate.py",
    "spotguard/hooks/control/ending/error_save.py",
    f"{os.path.dirname(os.__file__)}/pdb.py",  # and not a script's own, such as for the Protein Data Bank
)
#: A notebook's thread between two cells: in its kernel, outside of a cell's code and of the user's other code, such as a widget's.
_KERNEL, _CELL = "/ipykernel/kernelapp.py", "/IPython/core/interactiveshell.py"
#: Where a thread waits for the next line of a person, by the end of a file's path and a function of it.
_PROMPTS = (
    ("/IPython/terminal/interactiveshell.py", "prompt_for_code"),
    ("/_pyrepl/readline.py", "multiline_input"),
)
#: Places of a waiting thread that count as one: more are progress.
_FEW = 4
#: Seconds between two looks beyond which this process was stopped, or suspended, or without an agent: such time does not count.
_GAP = 6.0
#: The share of a processor above which the training thread computes.
_BUSY = 0.01
#: The share of a processor from which on a thread at one place, in a process with a GPU, waits for that: CUDA spins meanwhile.
_SPINS = 0.5
#: Code in which spotguard waits for the other ranks; and its clock, in which it waits for anything.
_RANKS, _CLOCK = "spotguard/hooks/consensus/", "spotguard/providers/clock.py"
#: The folder of this package: a script of the user's may lie in another one of that name, such as a clone of the repository.
_PACKAGE = f"{Path(__file__).parents[3]}/"
#: Folders of code that is not the user's.
_LIBRARIES = ("site-packages", "dist-packages", _PACKAGE, "/lib/python3")


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """The present work of the training thread."""

    #: "data", "forward", "backward", "optimizer", "collective", "evaluation", "save"; "process" for a program or a pool that the
    #: script has started, "other" for its own code; "start" and "ranks" before training, and "" before `register` and after training.
    phase: str = ""
    #: Seconds without any sign of progress; negative if not known.
    still: float = -1.0
    #: The innermost line of the script, as "train.py:42 in main"; "" if there is none.
    where: str = ""
    #: Seconds without progress that are a stall in this phase; negative while too little is known of it.
    limit: float = -1.0


class TrainingProgress:
    """The progress of one training thread.

    Args:
        completed: returns the completed steps.
        clock: the clock.
        evaluates: returns whether the registered models are in evaluation.
        worked: returns the processor seconds that a thread has used.
        times: the times of its phases.
        all_worked: returns the processor seconds that all threads, and the processes that they have started, have used.
        moves: returns how often a store has moved.
        answers: returns a number that rises as a notice is answered, which takes some work and asks the store.
    """

    def __init__(
        self,
        completed: Callable[[], int],
        clock: Clock,
        evaluates: Callable[[], bool],
        worked: Callable[[threading.Thread], float] | None = None,
        times: PhaseTimes | None = None,
        all_worked: Callable[[], float] | None = None,
        moves: Callable[[], int] = lambda: 0,
        answers: Callable[[], int] = lambda: 0,
    ) -> None:
        self._completed, self._clock = completed, clock
        self._evaluates, self._worked = evaluates, worked or processor_seconds
        self._times = times or PhaseTimes()
        self._all_worked, self._moves, self._answers = all_worked or processor_seconds_of_all, moves, answers
        self._thread: threading.Thread | None = None
        #: The thread that has registered, and not trained yet; the moves of a store, and the processor seconds of all threads.
        self._preparing: threading.Thread | None = None
        self._moved, self._all_work = 0, 0.0
        #: The notices that were answered at the last look.
        self._answered = 0
        self._step = -1
        #: The iterator of a loader in which the thread was found last, and the batches that it had delivered.
        self._delivered = (0, 0)
        #: Places of the thread since it last moved; and whether it was found in a save.
        self._places: set[int] = set()
        self._saves = False
        self._moved_at = self._looked_at = self._work = 0.0
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Follow the calling thread until training begins: it has registered, and is to restore."""
        thread = self._preparing = threading.current_thread()
        self._moved_at = self._looked_at = self._clock.monotonic()
        self._moved, self._work, self._all_work = self._moves(), self._worked(thread), self._all_worked()

    def begin(self) -> None:
        """Follow the calling thread from now on: it trains."""
        self._thread, self._preparing = threading.current_thread(), None
        self._moved_at = self._clock.monotonic()
        self._places.clear()

    @property
    def is_here(self) -> bool:
        """Whether the calling thread trains."""
        return self._thread is threading.current_thread()

    @property
    def begins_here(self) -> bool:
        """Whether training has not begun, and the calling thread is the main one."""
        return self._thread is None and threading.current_thread() is threading.main_thread()

    def look(self) -> ProgressSeen:
        """Return what the training thread does now. Any thread may ask."""
        with self._lock:
            return self._look() if self._preparing is None else self._look_at_start(self._preparing)

    def _look(self) -> ProgressSeen:
        thread = self._thread
        frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
        if thread is None or frame is None or not thread.is_alive() or _is_idle(frame):
            return ProgressSeen()
        phase, place, where = _read(frame)
        if phase in ("forward", "other") and self._evaluates():
            phase = "evaluation"
        step, delivered = self._completed(), _delivered(frame) or self._delivered
        now, share = self._times_of(thread, phase, place)
        if (step, delivered) != (self._step, self._delivered) or self._computes(share):
            self._places = {place}
            self._moved_at = now
        elif share > _SPINS and phase not in ("data", "save") and _has_peers():
            # NCCL's collectives return at once, and the script then waits for its GPU, as in loss.item(): so it may wait for a rank.
            phase = "collective"
        self._step, self._delivered = step, delivered
        still = now - self._moved_at
        return ProgressSeen(phase, still, where, self._times.look(phase, still, step, now))

    def _look_at_start(self, thread: threading.Thread) -> ProgressSeen:
        """Return what the thread does that has not begun to train. A download may run on other threads, and so does a restore."""
        frame = None if thread.ident is None else sys._current_frames().get(thread.ident)
        if frame is None or not thread.is_alive() or _is_idle(frame):
            return ProgressSeen()
        phase, place, where = _read_start(frame)
        moved, all_work, before, work = self._moves(), self._all_worked(), self._looked_at, self._work
        now, share = self._times_of(thread, phase, place)
        others = (all_work - self._all_work - (self._work - work)) / max(1e-9, now - before)
        answered = self._answers()
        # Else a stall's own stacks and records would be progress, and it would neither last nor end.
        aside = answered == self._answered and (moved != self._moved or others > _BUSY)
        if aside or self._computes(share):
            self._places = {place}
            self._moved_at = now
        self._moved, self._all_work, self._answered = moved, all_work, answered
        return ProgressSeen(phase, now - self._moved_at, where)

    def _times_of(self, thread: threading.Thread, phase: str, place: int) -> tuple[float, float]:
        """Take in where the thread is; return the time, and the share of a processor that the thread has used since the last look."""
        now, work = self._clock.monotonic(), self._worked(thread)
        # A save may take as long as it likes, and what follows begins anew.
        if self._saves and phase != "save":
            self._places.clear()
            self._moved_at = now
        self._saves = phase == "save"
        self._places.add(place)
        if self._looked_at and now - self._looked_at > _GAP:
            self._moved_at = min(now, self._moved_at + now - self._looked_at - _GAP)
        share = (work - self._work) / max(1e-9, now - self._looked_at)
        self._work, self._looked_at = work, now
        return now, share

    def _computes(self, share: float) -> bool:
        """Return whether a thread moves that uses this share of a processor. One that waits for a GPU may spin at one place."""
        return len(self._places) > _FEW or (share > _BUSY and (len(self._places) > 1 or not _uses_gpu()))


def phase_now(thread: threading.Thread) -> str:
    """Return the phase in which a thread of this process is, without "evaluation"; "" if it runs no Python."""
    frame = sys._current_frames().get(thread.ident) if thread.ident is not None else None
    return "" if frame is None else _read(frame)[0]


def processor_seconds(thread: threading.Thread) -> float:
    """Return the processor seconds that a thread of this process has used, in ticks of 10 ms; 0 where /proc does not tell."""
    return _seconds_in(f"/proc/self/task/{thread.native_id}/stat")


def processor_seconds_of_all() -> float:
    """Return the processor seconds of this process and of those that it has started: a pool of them may prepare the data."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            seconds += sum(_seconds_in(f"/proc/{pid}/stat") for pid in path.read_text().split())
    return seconds


def _seconds_in(path: str) -> float:
    try:
        with open(path, "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _has_peers() -> bool:
    """Return whether this process has joined others in a job of torch's."""
    c10d = sys.modules.get("torch.distributed")
    return c10d is not None and c10d.is_available() and c10d.is_initialized() and c10d.get_world_size() > 1


def stacks() -> list[str]:
    """Return the stack of each thread of this process, the main thread's first, its outermost frame first: files, lines and
    functions, and no values. Threads at the same place are one.

    No file is read: the script may lie on the file system that hangs.
    """
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    found: dict[str, list[str]] = {}
    for ident, frame in sorted(sys._current_frames().items(), key=lambda each: each[0] != main):
        lines = [
            f"  {each.f_code.co_filename}:{each.f_lineno} in {each.f_code.co_name}"
            for each in _outwards(frame)
        ]
        lines.reverse()
        found.setdefault("\n".join(lines), []).append(names.get(ident, "a thread that Python did not start"))
    return [redacted_text(f"{', '.join(names)}:\n{text}") for text, names in found.items()]


def _is_idle(frame: FrameType) -> bool:
    """Return whether a thread runs nothing, and waits for a person: in a notebook, or at a prompt."""
    places = [(each.f_code.co_filename, each.f_code.co_name) for each in _outwards(frame)]
    if any(file.endswith(path) and name == function for file, name in places for path, function in _PROMPTS):
        return True
    files = [file for file, _ in places]
    in_kernel = any(file.endswith(_KERNEL) for file in files)
    return in_kernel and all(of_library(file) and not file.endswith(_CELL) for file in files)


def _read(frame: FrameType) -> tuple[str, int, str]:
    """Return the phase, a number for the place of the stack, and the innermost line of the script."""
    stack = [*_outwards(frame)]
    places = [(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in stack]
    where = next((line_of(each) for each in places if not of_library(each[0])), "")
    phases = [phase_of(each) for each in places]
    if any(each.f_code.co_filename.endswith(_HOLDS) for each in stack):
        return "save", 0, where
    phase = next((each for each in reversed(phases) if each), "other")
    # A loader polls its workers, and a collective its peers, so only the frames outside say where the thread is.
    waiting = phase if phase in ("data", "save") else "collective"
    inner = len(phases) - 1 - phases[::-1].index(waiting) if waiting in phases else 0
    if waiting == "collective" and waiting in phases:
        phase = waiting
    return phase, hash(tuple((each.f_code, each.f_lasti) for each in stack[inner:])), where


def _read_start(frame: FrameType) -> tuple[str, int, str]:
    """Return the same of a thread that has not begun to train."""
    stack = [*_outwards(frame)]
    files = [each.f_code.co_filename for each in stack]
    phase, place, where = _read(frame)
    if any(file.endswith(_HOLDS) for file in files) or phase == "collective":
        return phase, place, where
    # The first rank reads the store inside a wait of the others, so the innermost part of spotguard tells which one it is.
    ours = next((file for file in files if file.startswith(_PACKAGE) and not file.endswith(_CLOCK)), "")
    place = hash(tuple((each.f_code, each.f_lasti) for each in stack))
    return START_WAIT if _RANKS in ours else START, place, where


def _delivered(frame: FrameType) -> tuple[int, int] | None:
    """Return which iterator of a loader the thread waits for, and how many batches it has delivered; None if it waits for none."""
    for each in _outwards(frame):
        if each.f_code.co_name == "__next__" and each.f_code.co_filename.endswith(_LOADERS):
            iterator = each.f_locals.get("self")
            return id(iterator), int(getattr(iterator, "_num_yielded", 0))
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def phase_of(place: tuple[str, int, str]) -> str:
    """Return the phase that a frame stands for, given its file, line and function; "" for none."""
    file, _, name = place
    for path, function, phase in _PLACES:
        if file.endswith(path) and function in ("", name):
            return phase
    return ""


def of_library(path: str) -> bool:
    """Return whether a file is not the user's."""
    return path.startswith("<") or any(folder in path for folder in _LIBRARIES)


def line_of(place: tuple[str, int, str]) -> str:
    """Return a frame for a person, as "train.py:42 in main"."""
    file, line, function = place
    return f"{Path(file).name}:{line} in {function}"
