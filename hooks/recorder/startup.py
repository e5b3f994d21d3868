"""The recorder's start-up, from the interpreter's first line on: it watches opened files, started threads and hangs.

It also seeds the generators, so that two runs of a script that seeds nothing can be compared.

Every Python of the run executes this file by its path (a `sitecustomize` on PYTHONPATH), before the script and without the
rest of spotguard. So the module imports only the standard library. It must load even on a Python that spotguard does not
support. Nothing in here may raise, because the script would fail with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import random
import sys
import threading
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Key of this module in `sys.modules`, whichever way it was loaded.
NAME = "_spotguard_prove_startup"
#: Share of the plan's `stall` without a step after which the stacks are dumped. The harness ends the run after all of it.
_DUMP_AT = 0.8

_LIBRARY = (os.path.dirname(os.__file__),)
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_SYSTEM = ("/usr/", "/lib", "/proc/", "/sys/", "/dev/", "/etc/", *_LIBRARY)


class FileWatch:
    """A record of this process's files and threads, as lines of JSON.

    A process has only one, because an audit hook cannot be removed.
    """

    def __init__(self, folder: str, stall: float) -> None:
        self._stall = stall
        self._pid = os.getpid()
        self._out = os.open(
            os.path.join(folder, f"files-{self._pid}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        # Kept open: faulthandler writes to the descriptor.
        self._stacks = open(os.path.join(folder, f"stacks-{self._pid}.txt"), "w")  # noqa: SIM115
        self._seen: set[tuple[str, str]] = set()
        self._busy = threading.local()
        self.still_alive()
        sys.addaudithook(self._hear)
        self._hear_of_threads()

    def still_alive(self) -> None:
        """Restart the hang timer, after a completed step."""
        if os.getpid() == self._pid:
            faulthandler.dump_traceback_later(self._stall * _DUMP_AT, exit=False, file=self._stacks)

    def _hear(self, event: str, args: tuple) -> None:  # type: ignore[type-arg]
        if event not in _EVENTS or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            _EVENTS[event](self, args)
        except Exception:  # noqa: BLE001 - the script must go on as if nothing watched it
            return
        finally:
            self._busy.now = False

    def _opened(self, args: tuple) -> None:  # type: ignore[type-arg]
        path, mode, flags = args[0], args[1], args[2]
        if not isinstance(path, int):
            self._note(_way(path, mode, flags), path)

    def _renamed(self, args: tuple) -> None:  # type: ignore[type-arg]
        self._note("write", args[1])

    def _database(self, args: tuple) -> None:  # type: ignore[type-arg]
        self._note("update", args[0])

    def _hear_of_threads(self) -> None:
        """Wrap `Thread.start`, because Python has an audit event for threads only from 3.12 on."""
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            with contextlib.suppress(Exception):  # as in `_hear`
                self._thread(sys._getframe(1))
            start(thread)

        threading.Thread.start = started  # type: ignore[method-assign,assignment]

    def _thread(self, frame: types.FrameType | None) -> None:
        """Note the line of the script that starts a thread, directly or through the standard library."""
        while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARY, "<frozen")):
            if "site-packages" in frame.f_code.co_filename:
                return
            frame = frame.f_back
        if frame is None or "site-packages" in frame.f_code.co_filename:
            return
        file = os.path.abspath(frame.f_code.co_filename)
        if not file.startswith(_OURS):
            self._write("thread", f"{file}:{frame.f_lineno}")

    def _note(self, way: str, path: object) -> None:
        name = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        if name.startswith(_SYSTEM) or "site-packages" in name or name.endswith((".pyc", ".lock")):
            return
        if way == "read" and not os.path.isfile(name):
            return
        if way == "update" and not os.path.exists(name):
            way = "write"
        self._write(way, name)

    def _write(self, way: str, name: str) -> None:
        if (way, name) not in self._seen:
            self._seen.add((way, name))
            os.write(self._out, (json.dumps([way, name]) + "\n").encode())


def _way(path: object, mode: object, flags: int) -> str:
    """Return how a file is opened: "read", "write" (from its start), "append", or "update" if its old content counts too."""
    access = flags & os.O_ACCMODE
    if access == os.O_RDONLY:
        return "read"
    if flags & (os.O_TRUNC | os.O_EXCL):
        return "write"
    if access == os.O_WRONLY:
        return "append"
    return "update"


_EVENTS = {
    "open": FileWatch._opened,
    "os.rename": FileWatch._renamed,
    "os.link": FileWatch._renamed,
    "os.symlink": FileWatch._renamed,
    "sqlite3.connect": FileWatch._database,
}


class Seeder:
    """A finder that seeds a library's generator once the library is loaded. It finds no module by itself."""

    def __init__(self, seed: int) -> None:
        self._after: dict[str, Callable[[Any], object]] = {
            "numpy.random": lambda module: module.seed(seed),
            "torch": lambda module: module.manual_seed(seed),
        }

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name not in self._after:
            return None
        after = self._after.pop(name)
        spec = importlib.util.find_spec(name)  # from the finders after this one
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: types.ModuleType) -> None:
                load(module)
                with contextlib.suppress(Exception):
                    after(module)

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    sys.meta_path.insert(0, Seeder(seed))  # type: ignore[arg-type]


def begin() -> FileWatch | None:
    """Watch this process if a plan asks for it. A second call returns the same watch."""
    try:
        if NAME in sys.modules and hasattr(sys.modules[NAME], "watch"):
            return sys.modules[NAME].watch  # type: ignore[no-any-return]
        with open(os.environ["SPOTGUARD_PROVE"]) as file:
            plan = json.load(file)
        _seed_generators(plan.get("seed", 0) + int(os.environ.get("RANK") or 0))
        made = FileWatch(plan["folder"], plan["stall"])
        module = sys.modules.setdefault(NAME, type(sys)(NAME))
        module.watch = made  # type: ignore[attr-defined]
        return made
    except Exception:  # noqa: BLE001 - no plan file, or a Python that is too old: nothing is watched
        return None
