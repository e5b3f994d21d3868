"""The place of a thread: its phase of training and the line of the script, read from its stack.

Nothing runs on the thread itself. A look at a stack of 80 frames takes 0.2 ms of Python's lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType

from ....providers.redaction import redacted_text
from ..messages import START, START_WAIT, STEP_PHASES

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
    ("/multiprocess/process.py", "join", "process"),  # the copy of multiprocessing in Hugging Face's datasets
    ("/multiprocess/pool.py", "get", "process"),
    ("/multiprocess/pool.py", "next", "process"),
    ("/multiprocess/pool.py", "join", "process"),
    ("/concurrent/futures/_base.py", "", "process"),
    # torch.compile's workers: new shapes in the middle of training may take minutes.
    ("torch/_inductor/async_compile.py", "", "process"),
)
#: Files of loaders whose iterators count the batches that they have delivered.
_LOADERS = ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
_STDLIB = os.path.dirname(os.__file__)
#: Where a thread may wait for as long as it takes, whatever it was called from: the gate parks it, its error is saved, or a person
#: holds it.
_HOLDS = (
    "spotguard/hooks/control/gate.py",
    "spotguard/hooks/control/ending/error_save.py",
    f"{_STDLIB}/pdb.py",  # and not a script's own, such as for the Protein Data Bank
)
#: A notebook's thread between two cells: in its kernel, outside of a cell's code and of the user's other code, such as a widget's.
_KERNEL, _CELL = "/ipykernel/kernelapp.py", "/IPython/core/interactiveshell.py"
#: Where a thread waits for the next word of a person, by the end of a file's path and a function of it.
_PROMPTS = (
    ("/IPython/terminal/interactiveshell.py", "prompt_for_code"),
    ("/_pyrepl/readline.py", "multiline_input"),
    (f"{_STDLIB}/code.py", "raw_input"),
    (
        "/pydevd.py",
        "_do_wait_suspend",
    ),  # the debugger of VS Code and PyCharm, whose frames are there all the time
    ("/pudb/debugger.py", "interaction"),
)
#: Code in which spotguard waits for the other ranks; and its clock, in which it waits for anything.
_RANKS, _CLOCK = "spotguard/hooks/consensus/", "spotguard/providers/clock.py"
#: The folder of this package: a script of the user's may lie in another one of that name, such as a clone of the repository.
_PACKAGE = f"{Path(__file__).parents[3]}/"
#: Files and functions that are known again: a stack has the same ones at nearly every look.
_CACHED = 4096
#: Folders of code that is not the user's.
_LIBRARIES = ("site-packages", "dist-packages", _PACKAGE, "/lib/python3")
#: A frame of a stack: its file, line and function.
_Frame = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """The place of a thread. It has no frame: that would keep the thread's tensors in memory."""

    phase: str
    #: A number for the place of the stack.
    place: int
    where: str
    #: The iterator of a loader that the thread waits for, and the batches that it has delivered; None if it waits for none.
    delivered: tuple[int, int] | None


def phase_in_training(frames: list[_Frame]) -> tuple[str, int]:
    """Return the phase, and the index of the innermost frame that tells the place.

    A loader polls its workers, and a collective its peers, so only the frames outside say where the thread is.
    """
    phases = [phase_of(each) for each in frames]
    phase = next((each for each in reversed(phases) if each), "other")
    if phase != "data" and "collective" in phases:
        phase = "collective"  # also inside a save of all ranks, to which one of them may never come
    elif phase in STEP_PHASES and phase != "data" and "process" in phases:
        phase = "process"  # in forward and backward a program compiles
    polls = phase in ("data", "save", "collective")
    return phase, len(phases) - 1 - phases[::-1].index(phase) if polls else 0


def phase_before_training(frames: list[_Frame]) -> tuple[str, int]:
    """Return the same of a thread that has not begun to train."""
    phase, inner = phase_in_training(frames)
    if phase == "collective":
        return phase, inner
    # The first rank reads the store inside a wait of the others, so the innermost part of spotguard tells which one it is.
    files = (file for file, _, _ in frames)
    ours = next((file for file in files if file.startswith(_PACKAGE) and not file.endswith(_CLOCK)), "")
    return START_WAIT if _RANKS in ours else START, 0


def place_of(
    thread: threading.Thread | None,
    phase_in: Callable[[list[_Frame]], tuple[str, int]] = phase_in_training,
) -> ThreadPlace | None:
    """Return where a thread is; None if it runs no Python, or waits for a person."""
    if thread is None or thread.ident is None or not thread.is_alive():
        return None
    stack = [*_outwards(sys._current_frames().get(thread.ident))]
    frames = [(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in stack]
    if not stack or _is_idle(frames):
        return None
    held = any(file.endswith(_HOLDS) for file, _, _ in frames)
    phase, inner = ("save", len(stack)) if held else phase_in(frames)
    place = hash(tuple((id(each.f_code), each.f_lasti) for each in stack[inner:]))
    where = next((line_of(each) for each in frames if not of_library(each[0])), "")
    return ThreadPlace(phase, place, where, _delivered(stack))


def phase_now(thread: threading.Thread) -> str:
    """Return the phase in which a thread of this process is, without "evaluation"; "" if it runs no Python."""
    seen = place_of(thread)
    return "" if seen is None else seen.phase


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


def _is_idle(frames: list[_Frame]) -> bool:
    """Return whether a thread runs nothing, and waits for a person: in a notebook, or at a prompt."""
    if any(_asks(file, name) for file, _, name in frames):
        return True
    files = [file for file, _, _ in frames]
    in_kernel = any(file.endswith(_KERNEL) for file in files)
    return in_kernel and all(of_library(file) and not file.endswith(_CELL) for file in files)


@lru_cache(_CACHED)
def _asks(file: str, name: str) -> bool:
    return any(file.endswith(path) and name == function for path, function in _PROMPTS)


def _delivered(stack: list[FrameType]) -> tuple[int, int] | None:
    for each in stack:
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
    return _phase_of(place[0], place[2])


@lru_cache(_CACHED)
def _phase_of(file: str, name: str) -> str:
    return next(
        (phase for path, function, phase in _PLACES if file.endswith(path) and function in ("", name)), ""
    )


@lru_cache(_CACHED)
def of_library(path: str) -> bool:
    """Return whether a file is not the user's."""
    return path.startswith("<") or any(folder in path for folder in _LIBRARIES)


def line_of(place: tuple[str, int, str]) -> str:
    """Return a frame for a person, as "train.py:42 in main"."""
    file, line, function = place
    return f"{Path(file).name}:{line} in {function}"
