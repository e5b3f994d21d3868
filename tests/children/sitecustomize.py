"""On the PYTHONPATH of every Python that a test starts: torch for half the price, which hundreds of processes pay.

The objects that an import of torch makes live to the end, so the garbage collector leaves them out, while torch is imported and at
the process's end. It sees the script's own objects as ever. The compiler is imported when something is compiled: `torch.optim`,
DistributedDataParallel and process groups import it only to find that it is not used.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import types
from typing import Any

#: What imports a hundred thousand objects or more.
HEAVY = ("torch", "torch._dynamo")
#: What DistributedDataParallel, and a process group's beginning, ask the compiler's parts for. Its caches are empty as it is imported.
PARTS: dict[str, dict[str, Any]] = {
    "utils": {"get_optimize_ddp_mode": lambda: "ddp_optimizer"},
    "trace_rules": {"clear_lru_cache": lambda: None},
}


class Importer:
    """A finder that loads each heavy module without garbage collections, and freezes what it made. It finds none by itself."""

    def __init__(self) -> None:
        self._left = {*HEAVY}

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name not in self._left:
            return None
        self._left.remove(name)
        spec = importlib.util.find_spec(name)  # from the finders after this one
        if spec is not None and spec.loader is not None and gc.isenabled():
            load = spec.loader.exec_module

            def loaded(module: types.ModuleType) -> None:
                gc.disable()
                try:
                    load(module)
                finally:
                    gc.freeze()
                    gc.enable()

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


class Compiler:
    """A finder and loader of a `torch._dynamo` that stands in for the real one until somebody asks for more than it has."""

    def __init__(self) -> None:
        #: What loads the real one into this one's place; None before the first import, and once it is loaded.
        self._real: Any = None
        self._module: types.ModuleType | None = None

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name == "torch._dynamo" and self._module is None:
            self._module = types.ModuleType(name)
            spec = importlib.util.find_spec(name)  # from the finders after this one
            if spec is not None:
                # Also its search path, so that its settings can be read without it.
                self._real, spec.loader = spec.loader, self  # type: ignore[assignment]
            return spec
        if name.startswith("torch._dynamo.") and name != "torch._dynamo.config":
            self._load()
        return None

    def create_module(self, spec: object) -> types.ModuleType | None:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(
            {name: self._part(name, **has) for name, has in PARTS.items()},
            disable=lambda function, *_, **__: function,
            graph_break=lambda: None,
            __getattr__=lambda name: getattr(self._load(), name),
        )

    def _part(self, part: str, **has: Any) -> types.ModuleType:
        module = types.ModuleType(f"torch._dynamo.{part}")
        vars(module).update(has, __getattr__=lambda name: getattr(getattr(self._load(), part), name))
        return module

    def _load(self) -> Any:
        if self._real is not None:
            loader, self._real = self._real, None
            for name in ("disable", "graph_break", *PARTS, "__getattr__"):
                delattr(self._module, name)
            loader.exec_module(self._module)
        return self._module


sys.meta_path.insert(0, Importer())  # type: ignore[arg-type]
sys.meta_path.insert(0, Compiler())  # type: ignore[arg-type]
