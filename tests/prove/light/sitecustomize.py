"""Half of torch's import, left out by a test that has this folder on its PYTHONPATH.

`torch.optim` imports the compiler to say "not here", and torch itself the shapes that operators have on the meta device.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

LEFT_OUT = ("torch._dynamo", "torch._meta_registrations")


class LeavesOut(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in LEFT_OUT else None

    def exec_module(self, module: Any) -> None:
        module.disable = lambda function, *_, **__: function
        module.graph_break = lambda: None


sys.meta_path.insert(0, LeavesOut())
