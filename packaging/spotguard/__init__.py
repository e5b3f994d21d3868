"""Save a PyTorch training job when the cloud takes its spot machine back, and go on from there.

Importing this module loads the standard library only: torch and the clouds' SDKs are loaded when a state or a
store asks for them. The agent imports this file first too, so the law keeps it small as well.
"""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Asked for rarely, and reading the installed metadata costs more than the whole import.
        from importlib.metadata import version

        return version("spotguard")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
