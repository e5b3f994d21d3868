"""Python runs this before the script, because `spotguard run --attach` puts its folder first in PYTHONPATH. The user's own runs behind it.

A tool below the run may be an older Python, down to 2.7.
"""

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_ours = sys.modules.pop("sitecustomize", None)
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
_watch = None
try:
    from importlib.machinery import SourceFileLoader

    _watch = type(os)("_spotguard_import_watch")
    _file = os.path.join(os.path.dirname(_here), "import_watch.py")
    SourceFileLoader(_watch.__name__, _file).exec_module(_watch)
    _watch.begin()
except Exception:  # noqa: BLE001 - nothing of ours may end the user's Python
    pass
try:
    importlib.import_module("sitecustomize")  # the next one, maybe the user's
except ImportError as error:
    if getattr(error, "name", None) not in (None, "sitecustomize"):
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
finally:
    getattr(_watch, "stay_first", dict)()
