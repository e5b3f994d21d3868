"""Adapters: a training of a framework, resumed bit for bit. Public as `spotguard.integrations.<name>`.

Read `binding` first: the protocol that every adapter implements, and what all of them share. `transformers`
(its Trainer and subclasses), `accelerate` and `lightning` follow it. `import spotguard` loads none of them.

An adapter that uses a private method of its framework checks at once that the method is there, and refuses by name and version.
"""

from __future__ import annotations

import importlib
from typing import Any

_ADAPTERS = ("accelerate", "lightning", "transformers")


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no adapter {name!r}: there are {', '.join(_ADAPTERS)}")
