"""Blobs down: the seam of a store, and what stands behind it. An SDK is imported when an URL asks for it, never before."""

from __future__ import annotations
