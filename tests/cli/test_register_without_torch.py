"""A script that calls `register` where there is no PyTorch is told what to install."""

from __future__ import annotations

import subprocess
import sys

#: Hides torch, as in an environment that has none, and begins as a training script does.
SCRIPT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import spotguard
spotguard.register(model=object())
"""


def test_register_without_torch_says_in_one_line_what_to_install() -> None:
    """The script's own line, and the message: no way through our imports, and none of torch's."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert "torch is not installed: pip install 'torch>=2.6' 'numpy>=1.26' (spotguard's extra torch)" in said
    assert "ModuleNotFoundError" not in ended.stderr
