"""What `spotguard bootstrap` prints, taken apart: the script in it, and what its head sets."""

from __future__ import annotations

import base64
import gzip
import random
import re
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotguard.bootstrap.render import PER_BOOT
from spotguard.cli import main

yaml: Any = pytest.importorskip("yaml")

STORES = {"aws": "s3://ckpt/gpt", "gcp": "gs://ckpt/gpt", "azure": "az://ckpt/gpt?account=acme"}
#: A command as a shell could misread it. (A `$HOME` may only stand in a shell's script.)
AWKWARD = [
    "sh",
    "-c",
    'it\'s "quoted" $HOME `id`',
    "a = 1 \nb",
    " \t",
    "\n \n",
    "#",
    "%i %s \\n",
    "é",
    "",
]
WHEEL = "https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl"
#: What every machine is said to need, in front of `-- COMMAND`.
NEEDED = ["--run-id", "gpt-7b", "--package", WHEEL]


def printed(
    capsys: pytest.CaptureFixture[str], cloud: str, *words: str, command: list[str] | None = None
) -> str:
    given = ["bootstrap", cloud, "--store", STORES[cloud], *NEEDED, *words, "--"]
    code = main.main([*given, *(["torchrun", "train.py"] if command is None else command)])
    seen = capsys.readouterr()
    assert (code, seen.err) == (0, ""), seen.err
    return seen.out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Nothing is printed that could be pasted."""
    assert main.main(["bootstrap", *words]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("spotguard: error: ")
    return seen.err


def noise(length: int) -> str:
    """A word that gzip makes little shorter, and always the same one."""
    return "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=length))


def script_of(user_data: str) -> str:
    (file,) = yaml.safe_load(user_data)["write_files"]
    assert (file["path"], file["permissions"], file["encoding"]) == (PER_BOOT, "0700", "gz+b64")
    return gzip.decompress(base64.b64decode(file["content"])).decode()


def values_of(script: str, folder: Path) -> dict[str, str]:
    """What the script's head sets, as the shell of this machine understands it."""
    head = script.partition("# --- what follows")[0]
    names = re.findall(r"^([a-z_]+)=", head, flags=re.MULTILINE)
    says = "".join(f'printf "%s\\0" {name} "${name}"\n' for name in names)
    done = subprocess.run(["sh", "-c", head + says], capture_output=True, text=True, check=True, cwd=folder)
    words = done.stdout.split("\0")[:-1]
    return dict(zip(words[::2], words[1::2], strict=True))


def functions_of(script: str) -> str:
    """The script without what it does: to try one of its parts by itself."""
    head, mark, _ = script.partition("# --- what is done ---")
    assert mark
    return head
