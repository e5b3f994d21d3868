"""c10d asks for the name of every host it connects to; where nobody answers such questions, not for long."""

from __future__ import annotations

import os

os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
