"""Environments of the peers, apart from the project's own: `.servers/peers/NAME`, made when a benchmark first asks.

A peer brings its own packages only. Torch and the rest come from the environment that measures, by a path file behind
its own packages, so that all ways run on the same torch and nothing large is fetched.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from .rows import Unable

_ROOT = Path(__file__).parent.parent / ".servers" / "peers"

#: What pip is told. s3torchconnector asks for a torch, and is given ours: so its dependencies are named here.
_PACKAGES = {
    "s3fs": ("s3fs==2026.9.0", "aiobotocore==3.10.0"),
    "s3torchconnector": (
        "--no-deps",
        "s3torchconnector==1.5.0",
        "s3torchconnectorclient==1.5.0",
        "awscrt==0.38.1",
        "tenacity==9.2.1",
    ),
    "nvrx": (
        "--no-deps",
        "nvidia-resiliency-ext==0.4.1",
        "defusedxml==0.7.1",
        "nvidia-ml-py==13.615.71",
        "packaging",
        "psutil==7.2.2",
        "pynvml==13.0.1",
        "pyyaml==6.0.4",
    ),
}


def python_of(way: str) -> str:
    """The Python that knows how to save in this way; ours, if the SDK that the store needs is all.

    Raises:
        Unable: its packages cannot be had.
    """
    name = way.removeprefix("DCP + ")
    if name not in _PACKAGES:
        return sys.executable
    folder = _ROOT / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join([sys.executable, *_PACKAGES[name]])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"  making {folder}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, *_PACKAGES[name])
        site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        Path(site, "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
        ready.write_text(wanted)
    return str(python)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable(f"{' '.join(words)}: {done.stderr.strip()[-400:]}")
