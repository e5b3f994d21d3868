"""Wait in a fresh interpreter until a framework's Trainer is imported, and attach spotguard as it begins to train.

Loaded by its file, so that it also runs where spotguard is not installed and can say that. So it imports the standard library only.
Nothing in it may end or slow the script: it runs in each Python below `spotguard run --attach`, and loads no module that Python has not
loaded for itself (`typing`, `importlib.abc` and `importlib.util` take 8 ms).
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: `spotguard run --attach` sets it for its command.
VARIABLE = "SPOTGUARD_ATTACH"
#: By module: the class that trains, its method that does, and the function of `trainers` that attaches to an object of it.
TRAINERS = {
    "transformers.trainer": ("Trainer", "train", "attach_transformers"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "attach_lightning"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "attach_lightning"),
}
#: Frameworks that leave the loop to the script, by module, with the page that has the lines for it.
_LOOPS = {
    "deepspeed": "DeepSpeed",
    "lightning.fabric": "Lightning Fabric",
    "accelerate": "accelerate",
    "torchtitan": "torchtitan",
    "ray.train": "Ray Train",
}
#: Beginnings of the module or program of a process that starts others, which train.
_LAUNCHERS = ("torch.distributed.", "torchrun", "accelerate", "deepspeed", "horovod")
#: `hooks.ipc.messages.VERSION`, for the one message that is sent without spotguard.
_PROTOCOL = 1
#: The Trainers of this process that train now.
_TRAINING: list[str] = []
#: Exit code of a Python that has a framework and no spotguard: a usage error.
_USAGE = 2


class ImportWatch:
    """Follows imports, and changes the classes of `TRAINERS` behind the import of their modules."""

    def __init__(self) -> None:
        #: Modules that are not followed yet: they may be there already, be being imported, or come by a loader that cannot be followed.
        self._unfinished = {*TRAINERS}
        self._searching: set[str] = set()
        self._look()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._unfinished:
            self._look()
        if fullname not in TRAINERS or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is not self and find is not None and (spec := find(fullname, path, target)):
                    return _followed(spec)
        finally:
            self._searching.discard(fullname)
        return None

    def _look(self) -> None:
        for name in [*self._unfinished]:
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._unfinished.discard(name)
                follow(module)


def _followed(spec: ModuleSpec) -> ModuleSpec:
    """Return the spec of a module of `TRAINERS`, whose loader follows it once, and is then as it was."""
    loader: Any = spec.loader
    execute = getattr(type(loader), "exec_module", None)

    def exec_module(module: ModuleType) -> None:
        assert execute is not None
        if module.__name__ != spec.name:  # a loader of several modules, as of a zip file
            execute(loader, module)
            return
        vars(loader).pop("exec_module", None)
        execute(loader, module)
        follow(module)

    try:
        if execute is not None:
            loader.exec_module = exec_module
    except AttributeError:  # one with slots: the module is followed at the next import
        pass
    return spec


def follow(module: ModuleType) -> None:
    """Have the trainers of this module attach themselves as they begin to train. Never raise, in an import of the script's."""
    try:
        name, method, attach = TRAINERS[module.__name__]
        kind = getattr(module, name)
        train = getattr(kind, method)
        if not hasattr(train, "_spotguard_attaches"):
            setattr(kind, method, _attaching(train, attach))
            _tell_agent(f"{module.__name__} was imported, and its {name}.{method}() not called yet")
    except Exception:  # noqa: BLE001 - another framework of that name: the exit says that nothing was attached
        return


def _attaching(train: Callable[..., Any], attach: str) -> Callable[..., Any]:
    import functools

    @functools.wraps(train)
    def attached(trainer: Any, *given: Any, **named: Any) -> Any:
        if _TRAINING:  # a callback's probe: the one that began first keeps the guard
            _say(
                f"spotguard run --attach: a {type(trainer).__name__} begins within {_TRAINING[0]}: not guarded"
            )
            return train(trainer, *given, **named)
        change = getattr(_trainers(train.__module__.partition(".")[0]), attach)
        given, named = change(trainer, train, given, named)
        _TRAINING.append(f"the training of a {type(trainer).__name__}")
        try:
            return train(trainer, *given, **named)
        finally:
            _TRAINING.pop()

    attached._spotguard_attaches = True  # type: ignore[attr-defined]
    return attached


def _trainers(framework: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module("spotguard.attach.trainers")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "spotguard":
            raise
        _say(
            f"spotguard run --attach: {sys.executable} has {framework} and no spotguard: install it there, as in "
            f"{sys.executable} -m pip install 'spotguard[s3]'"
        )
        raise SystemExit(_USAGE) from None


def begin() -> None:
    """Watch this interpreter's imports, once, if it may train below a `spotguard run --attach`. Never raise."""
    try:
        watched = any(hasattr(each, "_unfinished") for each in sys.meta_path)
        if not os.environ.get(VARIABLE) or watched:
            return
        sys.meta_path.insert(0, ImportWatch())
        if not any("from multiprocessing." in word for word in sys.orig_argv[1:4]):
            atexit.register(_say_if_nothing, os.getpid())
    except Exception:  # noqa: BLE001 - as the docstring says
        return


def stay_first() -> None:
    """Move the watch in front of the finders of a later startup file: one that answers for all modules would hide it."""
    sys.meta_path.sort(key=lambda finder: not hasattr(finder, "_unfinished"))


def _is_launcher() -> bool:
    """Return whether this process starts others, which train. transformers imports accelerate's launcher, so imports do not tell."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "__main__")
    started = os.path.basename(sys.argv[0]) if name == "__main__" else name
    return started.startswith(_LAUNCHERS)


def _say_if_nothing(pid: int) -> None:
    """Say at the exit of a process that may have trained that nothing was attached in it."""
    if os.getpid() != pid or "torch" not in sys.modules or os.environ.get("RANK", "0") != "0":
        return
    if "spotguard.hooks.register" in sys.modules or _is_launcher():
        return
    loop = next((words for name, words in _LOOPS.items() if name in sys.modules), "")
    there = next((name for name in TRAINERS if name in sys.modules), "")
    if there:
        why = f"{there} was imported, and its {TRAINERS[there][0]}.{TRAINERS[there][1]}() never called"
    elif loop:
        why = f"{loop} leaves the loop to the script, which then needs some lines: see the page about {loop}"
    else:
        why = "neither the Trainer of transformers nor Lightning's was imported"
    _say(f"spotguard run --attach: nothing was attached: {why}")
    _tell_agent(why)


def _tell_agent(why: str) -> None:
    """Tell the run's agent why nothing is attached here: its status and its records name the reason. Never raise, or wait."""
    try:
        if os.environ.get("RANK", "0") != "0":
            return
        import json
        import socket

        message = json.dumps({"type": "unattached", "why": why, "protocol": _PROTOCOL}).encode()
        with socket.socket(socket.AF_UNIX) as agent:
            agent.setblocking(False)
            agent.connect(os.environ["SPOTGUARD_SOCKET"])
            agent.sendall(len(message).to_bytes(4, "big") + message)
    except Exception:  # noqa: BLE001 - no agent, or one that is busy: the line on stderr is there
        return


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
