"""All that an agent says to who watches along: each notice, each withdrawal, and how well its sources see."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from spotguard.agent.ipc.client import AgentClient
from spotguard.hooks.ipc.protocol import FeedHealth, FeedNotice, FeedNoticeGone, Watch, Watched
from spotguard.providers.errors import ProtocolError

#: Seconds. An agent gives a sign of life every five; after this it is stuck.
_SILENCE = 30.0


class Ear:
    """A watching connection, listened to on a thread of its own."""

    def __init__(self, socket: Path) -> None:
        self._caller = AgentClient(socket, Watch(os.getpid()), _SILENCE)
        self._change = threading.Condition()
        self._leaving = False
        self.notices: list[FeedNotice] = []
        #: Ids, in the order in which they were withdrawn.
        self.gone: list[str] = []
        #: Ids of what was heard on this page, and not withdrawn since.
        self.standing: set[str] = set()
        #: The newest word of each source.
        self.health: dict[str, FeedHealth] = {}
        self.sources = 0
        #: On this page a source said that it does not see, or had said so before.
        self.was_blind = False
        #: Why nothing more is heard; "" while all is well.
        self.ended = ""
        self._thread = threading.Thread(target=self._listen, name="soak-ear")
        self._thread.start()

    def wait_for(self, so: Callable[[], object], seconds: float) -> bool:
        """Until it is so, for that long at the most; False where it is not, or nothing more will be heard."""
        with self._change:
            return bool(self._change.wait_for(lambda: so() or self.ended, seconds)) and not self.ended

    @property
    def seeing(self) -> bool:
        """Every source sees."""
        return 0 < self.sources <= len(self.health) and not self.blind

    @property
    def blind(self) -> list[str]:
        """What the sources say that do not see."""
        words = (f"{h.source}: {h.sight} ({h.reason}): {h.detail}" for h in self.health.values())
        return [line for line, h in zip(words, self.health.values(), strict=True) if h.sight != "seeing"]

    def begin_page(self) -> None:
        """Forget what was heard."""
        with self._change:
            self.notices, self.gone, self.standing, self.was_blind = [], [], set(), bool(self.blind)

    def close(self) -> None:
        self._leaving = True
        self._caller.hang_up()
        self._thread.join()
        self._caller.close()

    def _listen(self) -> None:
        why = "the agent closed the connection"
        try:
            while (message := self._caller.receive(_SILENCE)) is not None:
                with self._change:
                    if isinstance(message, FeedNotice):
                        self.notices.append(message)
                        self.standing.add(message.id)
                    elif isinstance(message, FeedNoticeGone):
                        self.gone.append(message.id)
                        self.standing.discard(message.id)
                    elif isinstance(message, FeedHealth):
                        self.health[message.source] = message
                        self.was_blind |= message.sight != "seeing"
                    elif isinstance(message, Watched):
                        self.sources = message.sources
                    self._change.notify_all()
        except TimeoutError:
            why = f"the agent sent nothing for {_SILENCE:.0f} s"
        except (OSError, ProtocolError) as error:
            why = str(error)
        with self._change:
            self.ended = "" if self._leaving else why
            self._change.notify_all()
