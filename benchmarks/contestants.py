"""Those who save in turns to one server: a process each, warm and waiting, so that one round follows the other."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spotguard.hooks.ipc import protocol

from .agent_end import AgentEnd
from .children import child, line
from .link import Link
from .peers import python_of
from .services import Place
from .took import Took

OURS, RESTORE = "spotguard", "restore"
#: Seconds: more than any save takes. A deadline that is near would have it save less.
_LONG = 600.0


class Contestant:
    """A peer's process. Used by one thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.nbytes = 0
        #: Of the state that was saved last.
        self.checksum = 0

    def get_ready(self) -> None:
        """Wait until it can save."""
        self.nbytes = json.loads(line(self._process))["bytes"]

    def save(self) -> Took:
        """Train a step, and save its state."""
        before = self.ask("step")
        self.checksum = before["checksum"]
        seconds, first = self._save()
        after = self.ask("use")
        return Took(self.nbytes, seconds, after["cpu"] - before["cpu"], after["extra"], first)

    def ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(line(self._process))
        return answer

    def _save(self) -> tuple[float, float | None]:
        return self.ask("save")["seconds"], None


class Guarded(Contestant):
    """Ours: an emergency save at a notice, from the hook being told to the commit, the training thread asleep. It is
    a drill's, so that the process goes on."""

    def __init__(self, process: subprocess.Popen[str], agent: AgentEnd) -> None:
        super().__init__(process)
        self._agent = agent
        self._ids = (f"drill-{number}" for number in itertools.count())

    def _save(self) -> tuple[float, float | None]:
        id = next(self._ids)
        self._agent.say(protocol.Preempt(id, _LONG, 5.0, "terminate", "benchmark", drill=True))
        told = self._agent.hear(lambda m: isinstance(m, protocol.Delivered))
        first = self._agent.hear(lambda m: isinstance(m, protocol.Progress) and m.phase == "first-byte")
        done = self._agent.hear(lambda m: isinstance(m, protocol.Committed), timeout=_LONG)
        self._agent.say(protocol.Resume(id))
        assert isinstance(told, protocol.Delivered)
        assert isinstance(first, protocol.Progress)
        assert isinstance(done, protocol.Committed)
        return done.monotonic - told.monotonic, first.monotonic - told.monotonic


class Restorer(Contestant):
    """Ours again: each restore is into a new model and an optimizer without state."""

    def restore(self, checksum: int) -> Took:
        """Load the newest checkpoint.

        Raises:
            RuntimeError: it is not the state that was saved.
        """
        found = self.ask("restore")
        if found["checksum"] != checksum:
            raise RuntimeError("what was restored is not what was saved")
        return Took(self.nbytes, found["seconds"], found["cpu"], found["extra"])


@contextmanager
def contestants(
    ways: Sequence[str], link: Link, place: Place, mib: int, folder: Path
) -> Iterator[dict[str, Contestant]]:
    """A process for each way on the saver's machine; all start at once, for importing torch takes seconds."""
    with ExitStack() as held:
        found: dict[str, Contestant] = {}
        for way in ways:
            home = folder / way.replace(" ", "-")
            home.mkdir(mode=0o700)
            python, environ = python_of(way), dict(place.environ)
            agent = None
            if way == OURS:
                agent = held.enter_context(AgentEnd(home / "agent.sock"))
                environ["SPOTGUARD_SOCKET"] = str(home / "agent.sock")
            words = ["-m", "benchmarks.uploading", way, place.url, str(mib), str(home)]
            with link.on("saver"):
                process = held.enter_context(child(words, cwd=home, answers=True, python=python, **environ))
            if agent is not None:
                found[way] = Guarded(process, agent)
            else:
                found[way] = Restorer(process) if way == RESTORE else Contestant(process)
        for each in found.values():
            each.get_ready()
        yield found
