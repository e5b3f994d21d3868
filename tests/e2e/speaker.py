"""A guarded process that speaks the protocol without torch (`programs/speaking.py`), seen from outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.processes import Running

PROGRAM = str(Path(__file__).parent / "programs" / "speaking.py")
SPEAKING = (sys.executable, PROGRAM)


def saw(running: Running, what: str, rank: int | None = None) -> dict[str, Any]:
    """Wait for the next line about that, of this rank or of any; all that is said there."""
    who = r"\d+" if rank is None else rank
    said: dict[str, Any] = json.loads(running.out.until(rf'^{{"rank": {who}, "saw": "{what}"').string)
    return said
