"""On the PYTHONPATH of every Python that a test starts: torch for half the price, which hundreds of processes pay.

The objects that an import of torch makes live to the end, so the garbage collector leaves them out, while torch is imported and at
the process's end. It sees the script's own objects as ever. With LIGHT_TORCH in the environment, torch has no compiler, which
`torch.optim` imports only to find that it is not used. DistributedDataParallel and FSDP need it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import types

#: What imports a hundred thousand objects or more.
HEAVY = ("torch", "torch._dynamo")


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


class WithoutCompiler:
    """A finder and loader of a `torch._dynamo` that compiles nothing."""

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name == "torch._dynamo" else None  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(disable=lambda function, *_, **__: function, graph_break=lambda: None)


sys.meta_path.insert(0, Importer())  # type: ignore[arg-type]
if "LIGHT_TORCH" in os.environ:
    sys.meta_path.insert(0, WithoutCompiler())  # type: ignore[arg-type]
