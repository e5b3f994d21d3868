"""Save a PyTorch training job when the cloud takes its spot machine back, and go on from there.

Importing this module loads the standard library only. torch and the clouds' SDKs are loaded when a state or a store needs
them. The agent imports this file first too, so the law keeps this import small as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import integrations, testing
    from .hooks.control.callback import on_notice
    from .hooks.control.ending.sigterm import Preempted
    from .hooks.guard import Guard
    from .hooks.register import register
    from .hooks.restore.interop.dcp_reader import StorageReader
    from .hooks.state.parts.loaders import ResumableLoader
    from .providers.errors import SpotguardError
    from .providers.notice import Notice

__all__ = [
    "Guard",
    "Notice",
    "Preempted",
    "ResumableLoader",
    "SpotguardError",
    "StorageReader",
    "integrations",
    "on_notice",
    "register",
    "testing",
]

#: Public name -> its module, which is loaded when the name is first used.
_HOMES = {
    "Guard": ".hooks.guard",
    "Notice": ".providers.notice",
    "Preempted": ".hooks.control.ending.sigterm",
    "ResumableLoader": ".hooks.state.parts.loaders",
    "SpotguardError": ".providers.errors",
    "StorageReader": ".hooks.restore.interop.dcp_reader",
    "on_notice": ".hooks.control.callback",
    "register": ".hooks.register",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name], __name__), name)
        globals()[name] = value  # the next use costs a dict lookup
        return value
    if name in ("integrations", "testing"):
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        # Few callers need the version, and reading the installed metadata costs more than the whole import.
        return importlib.import_module("importlib.metadata").version("spotguard")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
