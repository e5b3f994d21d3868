"""The training of `pl.py` by the older name of the package, whose classes are others."""

from __future__ import annotations

import importlib
import os

os.environ["LIGHTNING"] = "pytorch_lightning"

main = importlib.import_module("pl").main

if __name__ == "__main__":
    main()
