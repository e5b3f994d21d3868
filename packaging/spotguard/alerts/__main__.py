"""`python -m spotguard.alerts`: the agent starts it, and nothing else does."""

from __future__ import annotations

import sys

from .process import main

sys.exit(main())
