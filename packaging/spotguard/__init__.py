"""Save a PyTorch training job when the cloud takes its spot machine back, and go on from there.

Importing this module loads the standard library only: torch and the clouds' SDKs are loaded when a state or a
store asks for them. The agent imports this file first too, so the law keeps it small as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import testing
    from .hooks.control.callback import on_notice
    from .hooks.control.sigterm import Preempted
    from .hooks.guard import Guard
    from .hooks.interop.dcp_reader import StorageReader
    from .hooks.register import register
    from .providers.errors import SpotguardError
    from .providers.notice import Notice

__all__ = [
    "Guard",
    "Notice",
    "Preempted",
    "SpotguardError",
    "StorageReader",
    "on_notice",
    "register",
    "testing",
]

#: Public name -> the module it comes from, loaded at its first use.
_HOMES = {
    "Guard": ".hooks.guard",
    "Notice": ".providers.notice",
    "Preempted": ".hooks.control.sigterm",
    "SpotguardError": ".providers.errors",
    "StorageReader": ".hooks.interop.dcp_reader",
    "on_notice": ".hooks.control.callback",
    "register": ".hooks.register",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name], __name__), name)
        globals()[name] = value  # the next use costs a dict lookup
        return value
    if name == "testing":
        return importlib.import_module(".testing", __name__)
    if name == "__version__":
        # Asked for rarely, and reading the installed metadata costs more than the whole import.
        return importlib.import_module("importlib.metadata").version("spotguard")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
