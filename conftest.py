"""Links from the front door to the rooms, where they are missing: an unpacked source archive has none.

pytest's `pythonpath` leads to the front door, and without the links it would find a package without rooms.
"""

from __future__ import annotations

import signal
from pathlib import Path

_DOOR = Path(__file__).parent / "packaging" / "spotguard"
for _room in ("agent", "hooks", "providers"):
    if not (_DOOR / _room).exists():
        (_DOOR / _room).symlink_to(f"../../{_room}")

# A shell without job control starts what is in its background with SIGINT ignored, children inherit that, and each test
# of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
