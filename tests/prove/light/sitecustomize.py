"""On the PYTHONPATH of a test's lives: torch without its compiler, which `torch.optim` imports to say "not here". Half of a start."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class WithoutCompiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torch._dynamo" else None

    def exec_module(self, module: Any) -> None:
        module.disable = lambda function, *_, **__: function
        module.graph_break = lambda: None


sys.meta_path.insert(0, WithoutCompiler())
