"""A checkpoint as values and bytes: names, trees as typed JSON, objects, manifests. Pure: no thread, no store, no torch
on import."""

from __future__ import annotations
