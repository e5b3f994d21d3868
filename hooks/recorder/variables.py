"""A census of the script's own variables, as checksums by name. It includes unregistered state that training depends on.

The census runs none of the script's code: it reads no property, calls no `__repr__` of a user's class and advances no
iterator. Names are the script's own, with the function in front (`main(): count`), so that a report can show them.
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import gc
import itertools
import operator
import os
import pathlib
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, dataloader

from ..state.inventory.objects import attributes, is_array, outer_variables
from . import checksums, startup
from .state import RegisteredObjects, is_value, named_tensors, of_optimizer

#: Prefix for the type of a registered object. If a field of such an object changes, its state dict may leave that field out.
REGISTERED = "registered "
#: Prefix for the type of a helper: one whose `vars()` a registered dict can be, and one that holds more than values.
PLAIN, OTHER = "plain ", "other "
#: Prefix for the type of an environment of gymnasium.
ENVIRONMENT = "environment "
#: Separator between a function and its variable.
IN = ": "

_DEEPEST = 8
_MOST_ITEMS = 300
_MOST_VALUES = 20_000

#: Types whose `repr` is safe to call and shows the full value.
_PLAIN = (
    *(*checksums.ATOMS, torch.dtype, torch.device, torch.Size, range, slice, enum.Enum),
    *(datetime.date, datetime.time, datetime.timedelta, pathlib.PurePath, itertools.count),
)
#: The interpreter's own iterators. The garbage collector finds their referents, and their length hint shows their progress.
_SOME_ITERATORS: tuple[object, ...] = (
    *(iter([]), iter(()), iter({}), iter({}.values()), iter({}.items()), iter(range(0)), iter(set())),
    *(reversed([]), enumerate(()), zip(), map(str, ()), filter(None, ()), itertools.chain()),
    *(itertools.cycle(()), itertools.islice((), 0), itertools.repeat(None, 0)),
)
_ITERATORS = tuple(map(type, _SOME_ITERATORS))
#: Attributes of a module or a scheduler that are recorded elsewhere, or are not state.
_LEFT_OUT = frozenset({"optimizer", "_parameters", "_buffers", "_modules", "_iterator", "_opt_called"})


class CodeOwner:
    """A classifier of files: the script's own code, or a library's."""

    def __init__(self, workdir: str) -> None:
        self._workdir = os.path.realpath(workdir) + os.sep
        paths = sysconfig.get_paths()
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        rooms = [os.path.join(ours, room) for room in ("hooks", "agent", "providers", "packaging")]
        package = getattr(sys.modules.get(__package__.partition(".")[0]), "__path__", ())
        libraries = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._libraries = tuple(
            os.path.realpath(path) + os.sep
            for path in (*libraries, *rooms, *package, os.path.dirname(torch.__file__))
        )
        self._known: dict[str, bool] = {}
        self._modules: list[str] = []
        self._count = 0

    def portable(self, text: str) -> str:
        """Return `text` with the working directory as `.`, so that it is the same in each copy of that directory."""
        return text.replace(self._workdir, "./").replace(self._workdir.rstrip(os.sep), ".")

    def is_users(self, file: str | None) -> bool:
        if not file or file.startswith("<"):
            return file in ("<string>", "<stdin>")
        known = self._known.get(file)
        if known is None:
            path = os.path.realpath(file)
            library = path.startswith(self._libraries) or f"{os.sep}site-packages{os.sep}" in path
            known = self._known[file] = path.startswith(self._workdir) or not library
        return known

    def modules(self) -> list[str]:
        """Return the names of the script's own modules. The search runs again only after an import."""
        if self._count != len(sys.modules):
            self._count = len(sys.modules)
            self._modules = [
                name for name, module in list(sys.modules.items()) if self._is_module(name, module)
            ]
        return self._modules

    def _is_module(self, name: str, module: object) -> bool:
        file = getattr(module, "__file__", None)
        if name == "__mp_main__" or name.partition(".")[0] in ("torch", "spotguard", startup.NAME):
            return False
        return name == "__main__" or (isinstance(file, str) and os.path.isabs(file) and self.is_users(file))

    def class_is_users(self, cls: type) -> bool:
        module = sys.modules.get(cls.__module__)
        return cls.__module__ == "__main__" or self.is_users(getattr(module, "__file__", None))


class HiddenModules:
    """Modules that no variable of the script leads to, because a library's objects hold them.

    `search` asks the garbage collector for them. That takes 60 ms, so it is meant for the start of a run.
    """

    def __init__(self) -> None:
        self._found: dict[int, weakref.ref[nn.Module]] = {}

    def search(self) -> None:
        # `issubclass` on the type: `isinstance` asks some proxies for their class, and they warn.
        alive = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
        inner = {id(part) for each in alive for part in each.modules() if part is not each}
        self._found = {id(each): weakref.ref(each) for each in alive if id(each) not in inner}

    def modules(self) -> list[nn.Module]:
        return [module for reference in self._found.values() if (module := reference()) is not None]


class VariableCensus:
    """One snapshot of all variables.

    Args:
        registered: the registered objects. They are compared elsewhere and left out here.
        hidden: modules to read in addition to those that variables lead to.
        skip: spotguard's own objects.
    """

    def __init__(
        self,
        code: CodeOwner,
        registered: RegisteredObjects,
        hidden: HiddenModules,
        skip: tuple[object, ...] = (),
    ) -> None:
        self._code = code
        self._registered = registered
        self._hidden = hidden
        self._tensors = set(registered.parameter_names())
        self._registered_memory = {
            checksums.address(tensor)
            for _, module in registered.modules()
            for _, tensor in named_tensors(module)
        } - {0}
        #: Objects already visited, by id. The reference keeps each id from being reused by a new object.
        self._met: dict[int, object] = {id(each): each for each in skip}
        self._taken: set[str] = set()
        self._queue: collections.deque[tuple[str, Any, int]] = collections.deque()
        self._met |= {id(group): group for each in registered.optimizers() for group in each.param_groups}
        #: Checksum of each variable, by its name.
        self.values: dict[str, str] = {}
        #: Checksums of the tensors of unregistered modules.
        self.modules: dict[str, str] = {}
        #: Checksums of the state of unregistered optimizers.
        self.optimizers: dict[str, str] = {}
        #: The script's name for each object, by the object's id.
        self.names: dict[int, str] = {}
        #: Objects that are registered or could be, loaders' iterators, and the script's helpers, as "name: type" by their variable.
        self.objects: dict[str, str] = {}
        #: Registered names that the script has since bound to another object.
        self.rebound: list[str] = []
        #: Variables that name what a registered object held at the restore.
        self.held: list[str] = []

    def take(self, frame: types.FrameType | None) -> None:
        """Record the variables of the script's modules and of each of its functions on the stack."""
        innermost = True
        while frame is not None:
            if self._code.is_users(frame.f_code.co_filename):
                where = "" if frame.f_code.co_name == "<module>" else f"{frame.f_code.co_name}(){IN}"
                self._add_all(where, frame.f_locals, watched=innermost)
                innermost = False
            frame = frame.f_back
        for name in self._code.modules():
            if (module := sys.modules.get(name)) is not None:
                main = name == "__main__"
                self._add_all("" if main else f"{name}.", vars(module), watched=main)
        self._run()
        self._modules_nobody_names()

    def _add_all(self, where: str, variables: Mapping[str, Any], *, watched: bool) -> None:
        """Queue all variables of one scope.

        Args:
            watched: note which registered names are bound to another object in this scope.
        """
        for name, value in list(variables.items()):
            if not name.startswith("__"):
                self._queue.append((f"{where}{name}", value, 0))
                if watched and self._registered.is_replaced(name, value) and name not in self.rebound:
                    self.rebound.append(name)

    def _run(self) -> None:
        while self._queue and len(self.values) < _MOST_VALUES:
            self._look(*self._queue.popleft())

    def _look(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self.values[path] = checksums.of_text(self._code.portable(repr(value)))
            return
        if id(value) in self._met:
            return
        self._met[id(value)] = value
        if isinstance(value, dict) and id(value) in self._registered.names:
            return
        if self._registered.was_held(value):
            self.held.append(path)
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif is_array(value, scalars=True):
            self.values[path] = checksums.of_array(value)
        elif (state := checksums.of_generator(value)) is not None:
            self._name(path, value)
            self.values[path] = f"generator {state}"
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, Optimizer):
            self._optimizer(path, value)
        elif depth < _DEEPEST:
            self._queue.extend((name, item, depth + 1) for name, item in self._inside(path, value))

    def _tensor(self, path: str, tensor: torch.Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        if checksums.address(tensor) in self._registered_memory:
            return
        self._name(path, tensor)
        self.values[path] = checksums.of_tensor(tensor, sampled=True)

    def _module(self, path: str, module: nn.Module) -> None:
        registered = id(module) in self._registered.names
        called = self._name(path, module)
        for prefix, part in module.named_modules():
            self._met[id(part)] = part
            where = f"{path}.{prefix}".rstrip(".")
            for name in part._non_persistent_buffers_set:
                if (buffer := part._buffers.get(name)) is not None:
                    self.values[f"{where}.{name}"] = checksums.of_tensor(buffer)
            if self._code.class_is_users(type(part)):
                for name, value in list(vars(part).items()):
                    if not name.startswith("_") and name not in nn_attributes():
                        self._queue.append((f"{where}.{name}", value, 1))
        if registered:
            name = self._registered.names[id(module)]
            self.objects[path] = f"{name}: {REGISTERED}{type(module).__name__}"
            return
        self.objects[path] = f"{called}: {type(module).__name__}"
        for name, tensor in named_tensors(module):
            self.names.setdefault(id(tensor), f"{called}.{name}")
            if id(tensor) not in self._tensors and checksums.address(tensor) not in self._registered_memory:
                self.modules[f"{called}.{name}"] = checksums.of_tensor(tensor)

    def _optimizer(self, path: str, optimizer: Optimizer) -> None:
        called = self._name(path, optimizer)
        if self._code.class_is_users(type(optimizer)):
            for name, value in list(vars(optimizer).items()):
                if name not in ("state", "param_groups", "defaults") and not name.startswith("_"):
                    self._queue.append((f"{path}.{name}", value, 1))
        if id(optimizer) not in self._registered.names:
            named = {**self.names, **self._registered.parameter_names()}
            self.optimizers |= of_optimizer(called, optimizer, named)

    def _name(self, path: str, value: object) -> str:
        """Return the script's name for `value`, without the function if that name is not taken yet."""
        name = path.rpartition(IN)[2]
        if name in self._taken:
            name = path
        self._taken.add(name)
        return self.names.setdefault(id(value), name)

    def _modules_nobody_names(self) -> None:
        count: collections.Counter[str] = collections.Counter()
        for module in self._hidden.modules():
            if id(module) not in self._met:
                cls = type(module).__name__
                count[cls] += 1
                self._module(f"{cls} {count[cls]}" if count[cls] > 1 else cls, module)
        self._run()

    def _inside(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            yield from _some((f"{path}[{key!r}]", item) for key, item in list(value.items()))
            self._length(path, value)
        elif isinstance(value, (set, frozenset)):
            self.values[path] = checksums.of_text(self._code.portable(repr(sorted(map(_shallow, value)))))
        elif isinstance(value, (list, tuple, collections.deque)):
            items = list(value)
            if all(isinstance(item, checksums.ATOMS) for item in items):
                self.values[path] = checksums.of_text(self._code.portable(repr(items)))
                if not items:  # later it may hold objects without a text
                    self._length(path, items)
                return
            self._length(path, items)
            yield from _some((f"{path}[{number}]", item) for number, item in enumerate(items))
        elif isinstance(value, types.GeneratorType):
            if value.gi_frame is not None and self._code.is_users(value.gi_code.co_filename):
                yield from ((f"{path}'s {name}", item) for name, item in value.gi_frame.f_locals.items())
            if value.gi_yieldfrom is not None:
                yield f"{path}'s own", value.gi_yieldfrom
        elif isinstance(value, _ITERATORS):
            if not isinstance(value, (enumerate, zip, map, filter)):
                self.values[path] = f"iterator with {operator.length_hint(value, -1)} left"
            yield from (
                (f"{path} of", item) for item in gc.get_referents(value) if not isinstance(item, type)
            )
        elif isinstance(value, types.FunctionType):
            yield from self._function(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__self__
        elif isinstance(value, functools.partial):
            yield from ((f"{path} of", item) for item in (value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, type):
            if self._code.class_is_users(value):
                plain = {k: v for k, v in vars(value).items() if not k.startswith("__") and not callable(v)}
                yield from _some((f"{path}.{key}", item) for key, item in plain.items())
        else:
            yield from self._object(path, value)

    def _function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if not self._code.is_users(function.__code__.co_filename):
            return
        yield from ((f"{path}'s {name}", value) for name, value in outer_variables(function).items())
        fields = {name: item for name, item in vars(function).items() if name != "__wrapped__"}
        if fields:
            self._helper(path, function, fields)
        yield from ((f"{path}.{name}", item) for name, item in fields.items())
        yield from ((f"{path}'s default", item) for item in function.__defaults__ or ())

    def _object(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield an object's fields, if its class is the script's or has a state dict, or if it is a loader's iterator."""
        cls = type(value)
        called = self._name(path, value)
        environment = _is_environment(cls)
        stateful = callable(getattr(cls, "state_dict", None)) or isinstance(value, DataLoader) or environment
        registered = self._registered.names.get(id(value))
        if registered is None and environment:
            registered = self._registered.holder(value)
        if registered is not None:
            self.objects[path] = f"{registered}: {REGISTERED}{cls.__name__}"
        elif stateful or _is_loaders(cls):
            self.objects[path] = f"{called}: {ENVIRONMENT * environment}{cls.__name__}"
        elif self._code.class_is_users(cls):
            self._helper(path, value, attributes(value))
        if id(value) in self._registered.names and not self._code.class_is_users(cls):
            return
        if not stateful and not self._code.class_is_users(cls) and not _is_loaders(cls):
            return
        users = self._code.class_is_users(cls)
        kept = {
            k: v for k, v in attributes(value).items() if k not in _LEFT_OUT or (users and k != "optimizer")
        }
        yield from _some((f"{path}.{key}", item) for key, item in kept.items())

    def _helper(self, path: str, value: object, fields: Mapping[str, Any]) -> None:
        """Note an object without a state dict, and whether its attributes are values that a registered dict may hold."""
        whole = getattr(value, "__dict__", {}).keys() == fields.keys()
        kind = PLAIN if whole and all(map(is_value, fields.values())) else OTHER
        self.objects[path] = f"{self._name(path, value)}: {kind}{type(value).__name__}"

    def _length(self, path: str, value: Any) -> None:
        self.values[f"len({path})"] = str(len(value))


def _is_loaders(cls: type) -> bool:
    """Report whether `cls` is a loader's own iterator, whose fields show its progress."""
    return issubclass(cls, dataloader._BaseDataLoaderIter)


def _is_environment(cls: type) -> bool:
    """Report whether `cls` is an environment of gymnasium, or a wrapper of one."""
    return any(
        each.__name__ in ("Env", "VectorEnv") and each.__module__.partition(".")[0] in ("gymnasium", "gym")
        for each in cls.__mro__
    )


@functools.cache
def nn_attributes() -> frozenset[str]:
    return frozenset(vars(nn.Module()))


def _some(pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return itertools.islice(pairs, _MOST_ITEMS)


def _shallow(value: Any) -> str:
    return repr(value) if isinstance(value, checksums.ATOMS) else type(value).__name__
