"""Checkpoints in a store: written, committed, found, checked, read, pruned. Every wait is cut from a deadline."""

from __future__ import annotations
