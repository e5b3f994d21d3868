"""Names of a script that stood for a registered object and stand for another one since: `ema = {…}` in each turn, a scheduler made anew.

Saves go on with the object that was registered, and nothing of it fails: it is whole, and as it was. So the names that stand for each
registered object are learned when it is registered and at each restore, and looked up again at boundaries, innermost function first.

A name may be used for something else. One is named only if nothing near it still stands for the registered object, if that has not
changed from one boundary to the next, and if the other object has nothing of it.
"""

from __future__ import annotations

import logging
import re
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...inventory import objects
from ...inventory.call_stack import parameters_of, scopes
from ...inventory.reachable import MACHINERY, children_of, dict_of
from ...inventory.walk import ATOMS, reach
from ...memory_access import unreadable
from ...parts.attribute_watch import mark_of

log = logging.getLogger("spotguard")

#: The most items of a container, or attributes of an object, in which a name is looked for, and the most names of a frame.
_ITEMS, _NAMES = 100, 20_000
#: Limits of the search for the registered object in the other one.
_DEPTH, _OBJECTS = 4, 5_000
#: What holds no object of training, or so many that a name in it tells nothing.
_NO_HOLDERS = (*MACHINERY, types.FunctionType, types.BuiltinFunctionType, torch.Tensor, Optimizer)
_CONTAINERS = (dict, list, set, deque)

REBOUND = (
    "the script's %s is no longer the registered %s %r but another one, which no checkpoint has, so a resumed run begins it anew; "
    "%s [SG425]"
)
_KEEP = "change the registered object, and make no other one in its place"
_REMEDIES = (
    (dict, "change the registered dict itself, as in %s.update(…)"),
    (torch.Tensor, "change the registered tensor itself, as in %s.copy_(…) under torch.no_grad()"),
    (nn.Module, "change the registered module itself, as in %s.load_state_dict(…)"),
    (LRScheduler, "make all schedulers before spotguard.register(…), and register each of them"),
)


class _Rebound(NamedTuple):
    """A registered object whose names stand for another one."""

    word: str
    #: What is equal while the registered object stands still, and while the name stands for the same other one.
    mark: Any
    other: Any


class ReboundNames:
    """The names that stand for registered objects in the functions of the script.

    Args:
        values: the registered values, by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        #: Another optimizer in the place of one is seen when it steps.
        self._followed = {
            name: each
            for name, each in values.items()
            if isinstance(each, (dict, torch.Tensor))
            or (hasattr(type(each), "load_state_dict") and not isinstance(each, Optimizer))
        }
        #: By registered name, the words that stood for the object, as in `ema` or `self.ema`, each with the function; None in a module.
        self._words: dict[str, set[tuple[CodeType | None, str]]] = {name: set() for name in self._followed}
        self._told = set[str]()
        #: Whether the search has ended by an error.
        self._ended = False
        self.begin()

    def begin(self) -> None:
        """Learn the names that stand for the objects now."""
        self._rebound: dict[str, _Rebound] = {}
        try:
            names = {id(each): name for name, each in self._followed.items()}
            for code, variables in scopes(sys._getframe(1)):
                for word, value in self._named(variables):
                    if (name := names.get(id(value))) is not None:
                        self._words[name].add((code, word))
        except Exception:
            log.debug("the names of the script cannot be read", exc_info=True)

    @property
    def unsettled(self) -> bool:
        """Whether the next boundary tells whether a name is worth a warning."""
        return not self._told.issuperset(self._rebound)

    def look(self) -> None:
        """Warn about objects that no name stands for any more, once each. On the training thread, at a boundary."""
        try:
            if not self._ended:
                self._look()
        except Exception:
            self._ended = True
            log.debug("the search for names that stand for other objects has ended", exc_info=True)

    def _look(self) -> None:
        before, self._rebound = self._rebound, {}
        for name, each in self._find():
            self._rebound[name] = each
            known = before.get(name)
            # What was made once, before the loop, a resumed run makes again.
            if (
                known is not None
                and known.mark == each.mark
                and known.other != each.other
                and name not in self._told
            ):
                self._told.add(name)
                value = self._followed[name]
                remedy = next((words for kind, words in _REMEDIES if isinstance(value, kind)), _KEEP)
                kind = type(value).__name__
                log.warning(REBOUND, each.word, kind, name, remedy.replace("%s", each.word))

    def _find(self) -> Iterator[tuple[str, _Rebound]]:
        """Yield each object that a function's names no longer stand for although nothing else there does."""
        asked, ids = dict(self._followed), {*map(id, self._values.values())}
        for code, variables in scopes(sys._getframe(1)):
            named = [*self._named(variables)] if asked else []
            here, values = {id(each) for _, each in named}, dict(named)
            for name, each in [*asked.items()]:
                others = [(word, values[word]) for word in self._words_in(code, name) if word in values]
                others = [(w, v) for w, v in others if id(v) not in ids and _are_alike(v, each)]
                if id(each) in here or any(_has(other, each) for _, other in others):
                    del asked[name]
                elif others:
                    del asked[name]
                    word, other = min(others, key=lambda found: found[0])
                    yield name, _Rebound(word, _mark(each), (id(other), _mark(other)))

    def _words_in(self, code: CodeType | None, name: str) -> set[str]:
        """Return the words in a function that may stand for an object: they did, or its caller has passed it, or it is an outer variable."""
        known = self._words[name]
        here = {word for where, word in known if where is code}
        if code is not None:
            given = {*parameters_of(code), *code.co_freevars}
            here |= {
                word for word in {name, *(word for _, word in known)} if re.split(r"\W", word)[0] in given
            }
        return here

    def _named(self, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield variables of a function or a module, and what their values hold, each with its word."""
        registered = {*map(id, self._values.values())}
        for count, (name, value) in enumerate([*variables.items()]):
            if count > _NAMES:
                return
            if type(value) in ATOMS or not name.strip("_") or name.startswith("__"):
                continue
            yield name, value
            if id(value) not in registered and not isinstance(value, _NO_HOLDERS):
                yield from ((name + key, each) for key, each in _held(value))


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container or an object holds, each with the words behind its name. None of its code runs."""
    if type(value) in (dict, list, tuple):
        yield from ((f"[{key!r}]", each) for key, each in _items(value))
    else:
        attributes = dict_of(value)
        if len(attributes) <= _ITEMS:
            yield from ((f".{key}", each) for key, each in [*attributes.items()])


def _items(value: Any) -> list[tuple[Any, Any]]:
    if len(value) > _ITEMS:
        return []
    held = value.items() if type(value) is dict else enumerate(value)
    return [(key, each) for key, each in held if type(each) not in ATOMS and type(key) in (str, int)]


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether one object may be there in the other's place: torch has a class for each kind of schedule."""
    return type(one) is type(other) or (isinstance(one, LRScheduler) and isinstance(other, LRScheduler))


def _has(other: Any, registered: Any) -> bool:
    """Return whether another object is made around a registered one, or around what that holds."""
    if isinstance(registered, torch.Tensor):
        return _memory(other) == _memory(registered)
    own = {id(registered)}
    if isinstance(registered, nn.Module):
        own |= {*map(id, registered.parameters()), *map(id, registered.buffers())}
    elif isinstance(registered, _CONTAINERS):
        own |= {id(each) for each in _inside(registered) if isinstance(each, (torch.Tensor, *_CONTAINERS))}
    return any(id(each) in own for each in _inside(other))


def _inside(value: Any) -> Iterator[Any]:
    def enters(each: Any) -> bool:
        return not isinstance(each, (*MACHINERY, torch.Tensor, Optimizer))

    yield from (each for _, each in reach(value, children_of, enters, depth=_DEPTH, most=_OBJECTS))


def _memory(tensor: torch.Tensor) -> int:
    return 0 if unreadable(tensor) else tensor.untyped_storage().data_ptr()


def _mark(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return mark_of([*value.parameters(), *value.buffers()])
    if isinstance(value, (torch.Tensor, *_CONTAINERS)) or objects.is_array(value):
        return mark_of(value)
    return mark_of(
        {key: each for key, each in dict_of(value).items() if type(each) in (*ATOMS, *_CONTAINERS)}
    )
