"""`spotguard.on_notice(fn)`, for scripts that save by themselves. It needs no torch and no store: a thread and the socket."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from functools import partial

from ...providers.clock import SystemClock
from ...providers.errors import UsageError
from ...providers.notice import Notice, NoticeKind
from ..arguments.settings import agent_socket, plan_path, run_name
from ..arguments.speaker import name_the_speaker
from ..ipc import protocol
from ..ipc.client import SocketClient
from ..ipc.interpreter_lock import Hurry
from ..ipc.threads import TaskHandle, ThreadPool, join_ended
from .ending import sigterm

log = logging.getLogger("spotguard")


class NoticeCallback:
    """One registered function and its connection to the agent.

    Args:
        fn: the function.
        socket: the path of the agent's socket.
    """

    def __init__(self, fn: Callable[[Notice], object], socket: str) -> None:
        self._fn = fn
        self._clock = SystemClock()
        #: The answer to each notice; None while the function runs. An agent that lost the connection delivers again.
        self._answers: dict[str, protocol.Message | None] = {}
        #: Made before any notice: one may come at exit.
        self._threads = ThreadPool("spotguard-on-notice")
        self._threads.make()
        #: The calls of the function, and the deadlines of their notices.
        self._calls: list[tuple[TaskHandle, float]] = []
        self._client = SocketClient(
            socket, hello=self._hello, on_message=self._on_message, position=self._position
        )
        self._client.start()
        sigterm.in_child(self._client.forget)
        atexit.register(self.close)

    def close(self) -> None:
        """Send the agent `Bye`, and close the connection. The interpreter calls this at its exit.

        A script may end as soon as its loop has saved, before the function that waited for the loop has returned. Without its
        answer the agent would report that nothing was saved.
        """
        for call, deadline in self._calls:
            self._clock.wait(call.done, max(0.0, deadline - self._clock.monotonic()))
        self._threads.close()
        self._client.close()
        join_ended()

    def _hello(self) -> protocol.Register:
        return protocol.Register(
            pid=os.getpid(), run_id=run_name(None), name=os.path.basename(sys.argv[0] or "python")
        )

    def _position(self) -> protocol.Position:
        return protocol.Position(
            step=-1, mode="callback", detail=getattr(self._fn, "__qualname__", "a function")
        )

    def _on_message(self, message: protocol.Message) -> None:
        if not isinstance(message, protocol.Preempt):
            return  # the agent decides how training ends
        now = self._clock.monotonic()
        self._client.send(protocol.Delivered(message.id, now))
        if message.id in self._answers:  # the function is called once
            if (answer := self._answers[message.id]) is not None:
                self._client.send(answer)
            return
        self._answers[message.id] = None
        notice = Notice(
            id=message.id,
            kind=NoticeKind(message.kind),
            source=message.source,
            deadline=now + message.seconds_left - message.reserve,
            seen_at=now,
            window=message.seconds_left,
        )
        log.info(
            "%s notice from %s: %.1f s left, calling the function passed to on_notice",
            message.kind,
            message.source,
            message.seconds_left,
        )
        call = partial(self._call, notice, hurry := Hurry())
        hurry.begin()
        try:
            self._calls.append((self._threads.give(call), notice.deadline))
        except RuntimeError as error:
            self._answer(protocol.Failed(notice.id, f"on_notice: {error}"), hurry)

    def _call(self, notice: Notice, hurry: Hurry) -> None:
        started = self._clock.monotonic()
        try:
            self._fn(notice)
        except BaseException as error:
            log.exception("the function passed to on_notice failed")
            self._answer(protocol.Failed(notice.id, f"on_notice: {type(error).__name__}: {error}"), hurry)
            return
        now = self._clock.monotonic()
        log.info("the function passed to on_notice returned after %.1f s", now - started)
        self._answer(protocol.Committed(notice.id, -1, 0, now - started, "", now), hurry)

    def _answer(self, message: protocol.Failed | protocol.Committed, hurry: Hurry) -> None:
        self._answers[message.id] = message
        self._client.send(message)
        hurry.end()


def on_notice(fn: Callable[[Notice], object]) -> Callable[[Notice], object]:
    """Register `fn`, which spotguard calls as `fn(notice)` on a thread of its own when the cloud preempts this machine.

    When `fn` returns, the agent takes the state as saved, and ends the command. It also ends the command when
    `notice.deadline` (monotonic seconds) passes. If `fn` raises, the agent reports that nothing was saved. spotguard calls `fn`
    once for each notice. Without an agent (SPOTGUARD_SOCKET is not set), spotguard never calls `fn`.

    Args:
        fn: a function of one argument, the `Notice`. Its `window` is in seconds.

    Returns:
        `fn` itself, so that `on_notice` can be used as a decorator.

    Raises:
        UsageError: `fn` cannot be called.

    Example:
        >>> @spotguard.on_notice
        ... def save(notice):
        ...     write_checkpoint(seconds=notice.deadline - time.monotonic())
    """
    name_the_speaker()
    if not callable(fn):
        raise UsageError(f"on_notice() got {fn!r}: pass a function of one argument, the notice")
    # `spotguard prove` plays notices of its own, and must not touch the files that the function would save.
    if (socket := agent_socket()) and not plan_path():
        NoticeCallback(fn, socket)
    return fn
