"""Typed JSON for all that is not a tensor: `encode` it, `decode` it, and prove that it came back the `same`.

`encoder` says what the JSON looks like and what is refused; `decoder` reads it without running anything.
"""

from __future__ import annotations

from .decoder import decode
from .encoder import encode
from .sameness import same

__all__ = ["decode", "encode", "same"]
