"""The folder that `spotguard run --attach` puts first in PYTHONPATH: a `sitecustomize`, and no name that a script may import."""

from __future__ import annotations
