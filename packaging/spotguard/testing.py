"""For users' own tests: `spotguard.testing.preempt(guard, seconds=30)` is a notice by hand."""

from __future__ import annotations

from .hooks.testing import preempt

__all__ = ["preempt"]
