"""Tests of this folder need a GPU, and run by hand on a machine that has one: `pytest -m "not bench" tests/gpu`."""

from __future__ import annotations

from tests.e2e.conftest import machine

__all__ = ["machine"]
