"""The trace of a run between two moments: modules, classes, hand-overs between threads, and returns to a module.

Functions are counted, not calls. So a loop that turns once more changes nothing.

- A module or class is *entered* if a function or method of it is called. A method belongs to the class that defines it.
- A *way* is a pair of functions in two modules, of which one calls the other on one kind of thread. Functions of libraries
  between the two are left out. *Returns to a module* are the ways into it beyond the first, on each kind of thread.
- A *hand-over* is a pair of functions on two threads: one puts into a queue, sets an event, notifies a condition or starts a
  thread, and the other gets, returns from its wait, or is what begins. Word that passes through the job's store or the
  agent's socket is none.

Threads are of one kind if their names differ in digits only. Code that `dataclass` writes has no file, and counts as nothing.
"""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: A function of ours: its module, and its name in there, as in `Saver._take`.
Function = tuple[str, str]
_INNER = re.compile(r"\.<locals>\.<(?:listcomp|dictcomp|setcomp|genexpr)>")


class Call(NamedTuple):
    """A call of one of our functions, and the nearest function of ours that made it."""

    at: float
    thread: str
    caller: Function | None
    callee: Function


class Signal(NamedTuple):
    """One thread's word to another through `through`, or its receipt."""

    at: float
    thread: str
    place: Function
    through: int
    given: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """The sets of one trace; those of several processes can be united."""

    modules: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    #: (kind of thread, calling function, called function), in two modules.
    ways: frozenset[tuple[str, Function, Function]] = frozenset()
    #: (giving thread, function, taking thread, function).
    hand_overs: frozenset[tuple[str, Function, str, Function]] = frozenset()

    def __or__(self, other: Passed) -> Passed:
        return Passed(
            self.modules | other.modules,
            self.classes | other.classes,
            self.ways | other.ways,
            self.hand_overs | other.hand_overs,
        )

    @property
    def returns(self) -> int:
        return len(self.ways) - len({(thread, callee[0]) for thread, _, callee in self.ways})


def passed(calls: Iterable[Call], signals: Iterable[Signal], begin: float, end: float) -> Passed:
    """Return what was passed from `begin` to `end`."""
    inside = [call for call in calls if begin <= call.at <= end]
    functions = {call.callee for call in inside}
    return Passed(
        frozenset(module for module, _ in functions),
        frozenset(f"{module}.{owner}" for module, name in functions if (owner := _class(name))),
        frozenset(
            (kind(call.thread), call.caller, call.callee)
            for call in inside
            if call.caller is not None and call.caller[0] != call.callee[0]
        ),
        frozenset(_hand_overs([each for each in signals if begin <= each.at <= end])),
    )


def kind(thread: str) -> str:
    """Return the name of a thread without its numbers."""
    return re.sub(r"[-_ ]*\d+", "", thread)


def _class(function: str) -> str:
    """Return the class of a method, or of a function inside a method; "" if there is none."""
    return function.partition(".<locals>")[0].rpartition(".")[0]


def _hand_overs(signals: Iterable[Signal]) -> Iterable[tuple[str, Function, str, Function]]:
    """Yield a pair for each receipt: the newest word through the same object, if another thread has given it."""
    newest: dict[int, Signal] = {}
    for signal in sorted(signals, key=lambda each: each.at):
        if signal.given:
            newest[signal.through] = signal
        elif (word := newest.get(signal.through)) is not None and word.thread != signal.thread:
            yield kind(word.thread), word.place, kind(signal.thread), signal.place


#: Functions of the standard library by which a thread gives word, and those that return when it has come.
_GIVES = {
    each.__code__
    for each in (threading.Event.set, threading.Condition.notify, queue.Queue.put, threading.Thread.start)
}
_TAKES = {
    each.__code__
    for each in (threading.Event.wait, threading.Condition.wait, queue.Queue.get, threading.Thread.run)
}


@dataclass(slots=True)
class Recorder:
    """Records the calls of functions below the folders `ours`, on this thread and on all that begin after `begin`.

    Args:
        ours: returns the module of a file that counts; "" for another file.
        beside: the beginning of modules that are no place of a hand-over, such as the clock's: their callers are.
    """

    ours: Callable[[str], str]
    beside: str = "-"
    calls: list[Call] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    _functions: dict[CodeType, Function | None] = field(default_factory=dict)
    #: The objects of signals, so that none takes the `id` of another one.
    _kept: list[object] = field(default_factory=list)

    def begin(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event == "call":
            if (callee := self._function(code)) is not None:
                caller = self._nearest(frame.f_back)
                self.calls.append(Call(time.monotonic(), _thread(), caller, callee))
            elif code in _GIVES:
                self._signal(frame, frame.f_locals["self"], given=True)
            elif code is threading.Thread.run.__code__:
                self._signal(frame, frame.f_locals["self"], given=False)
        elif event == "return":
            if code in _TAKES and value not in (None, False):
                self._signal(frame, frame.f_locals["self"], given=False)
        elif type(through := getattr(value, "__self__", None)) is queue.SimpleQueue:
            if event == "c_call" and value.__name__ in ("put", "put_nowait"):
                self._signal(frame, through, given=True)
            elif event == "c_return" and value.__name__ in ("get", "get_nowait"):
                self._signal(frame, through, given=False)

    def _signal(self, frame: FrameType, through: object, *, given: bool) -> None:
        at = time.monotonic()
        place = self._nearest(frame, self.beside) or ("", "")
        if isinstance(through, threading.Thread) and not given:
            place = ("", through.name)
        self._kept.append(through)
        self.signals.append(Signal(at, _thread(), place, id(through), given))

    def _nearest(self, frame: FrameType | None, beside: str = "-") -> Function | None:
        while frame is not None:
            found = self._function(frame.f_code)
            if found is not None and not found[0].startswith(beside):
                return found
            frame = frame.f_back
        return None

    def _function(self, code: CodeType) -> Function | None:
        try:
            return self._functions[code]
        except KeyError:
            module = self.ours(code.co_filename)
            found = (module, _INNER.sub("", code.co_qualname)) if module else None
            self._functions[code] = found
            return found


def _thread() -> str:
    return threading.current_thread().name
