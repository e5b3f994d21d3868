"""The ways in which a command starts Python: each attaches, or is one that the page and the agent's line name."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spotguard.attach import variables
from tests.attach.test_import_watch import PTH
from tests.e2e.harness import Machine

#: Prints whether a Trainer attaches in this Python.
ATTACHES = "import sys\nimport transformers.trainer as t\nprint('attaches', hasattr(t.Trainer.train, '_spotguard_attaches'))\n"
#: As ddtrace's: it comes first, takes its folder away, and runs the next one.
BOOTSTRAP = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own
"""
#: As ddtrace's and wrapt's: a finder in front, whose specs have a loader of its own. SLOTS: one to which nothing can be added.
FINDER = """
import importlib.machinery, sys
class Loader:
    SLOTS
    def __init__(self, inner): self.inner = inner
    def create_module(self, spec): return self.inner.create_module(spec)
    def exec_module(self, module): self.inner.exec_module(module)
    def __getattr__(self, name): return getattr(self.inner, name)
class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec
sys.meta_path.insert(0, Finder())
"""
TRACER = "import atexit, sys, threading\nsys.settrace(lambda *given: None)\nthreading.settrace(lambda *given: None)\natexit.register(sys.settrace, None)\n"


def started(folder: Path, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
    env |= {"PYTHONPATH": str(folder), **more}
    return subprocess.run(
        [str(word) for word in command],
        env={**env, **variables(env)},
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def _script(folder: Path) -> list[str | Path]:
    return [sys.executable, program(folder / "train.py", ATTACHES)]


def _module(folder: Path) -> list[str | Path]:
    program(folder / "own.py", ATTACHES)
    return [sys.executable, "-m", "own"]


def _zipped(folder: Path) -> list[str | Path]:
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", ATTACHES)
    return [sys.executable, folder / "app.pyz"]


def _console_script(folder: Path) -> list[str | Path]:
    return [program(folder / "trl", f"#!{sys.executable}\n{ATTACHES}")]


def _like_uv(folder: Path) -> list[str | Path]:
    """A program that is no Python sets VIRTUAL_ENV, and becomes the environment's Python."""
    text = f'#!/bin/sh\nVIRTUAL_ENV={sys.prefix} PATH={Path(sys.executable).parent}:$PATH exec python "$@"\n'
    return [program(folder / "uv-run", text), program(folder / "train.py", ATTACHES)]


def _like_conda(folder: Path) -> list[str | Path]:
    """A Python writes a shell script that activates the environment, and runs it."""
    inner = (
        f"export CONDA_PREFIX={sys.prefix}\nexec {sys.executable} {program(folder / 'train.py', ATTACHES)}\n"
    )
    shell = f"import subprocess, sys\nsys.exit(subprocess.call(['sh', {str(program(folder / 'inner.sh', inner))!r}]))\n"
    return [program(folder / "conda-run", f"#!{sys.executable}\n{shell}")]


def _like_deepspeed(folder: Path) -> list[str | Path]:
    """A launcher that has imported torch starts another one, which starts the ranks in their own sessions."""
    program(folder / "train.py", ATTACHES)
    program(folder / "launch.py", _POPEN.format(words="[sys.executable, '-u', 'train.py']"))
    words = "[sys.executable, '-u', '-m', 'launch']"
    return [program(folder / "deepspeed", f"#!{sys.executable}\nimport torch\n{_POPEN.format(words=words)}")]


_POPEN = (
    "import os, subprocess, sys\nchild = subprocess.Popen({words}, env=os.environ.copy(), start_new_session=True)\n"
    "sys.exit(child.wait())\n"
)


@pytest.mark.parametrize(
    "way",
    [_script, _module, _zipped, _console_script, _like_uv, _like_conda, _like_deepspeed],
    ids=lambda way: way.__name__,
)
def test_a_command_that_passes_its_environment_on_attaches(
    way: Callable[[Path], list[str | Path]], folder: Path
) -> None:
    done = started(folder, *way(folder))
    assert (done.stdout, done.stderr) == ("attaches True\n", "")


@pytest.mark.parametrize("option", ["-s", "-P", "-O", "-B", "-u", "-Xutf8"])
def test_an_option_that_keeps_the_environment_attaches(option: str, folder: Path) -> None:
    script = program(folder / "train.py", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{ATTACHES}")
    assert started(folder, sys.executable, option, script).stdout == "attaches True\n"


@pytest.mark.parametrize(
    ("sitecustomize", "in_front"),
    [
        (BOOTSTRAP, True),
        (FINDER.replace("SLOTS", ""), False),
        (FINDER.replace("SLOTS", "__slots__ = ('inner',)"), False),
        (TRACER, False),
    ],
    ids=["bootstrap", "finder", "finder with slots", "tracer"],
)
def test_a_sitecustomize_of_a_tracer_runs_beside_ours(
    sitecustomize: str, in_front: bool, folder: Path
) -> None:
    """`ddtrace-run` puts its own in front of everything."""
    (own := folder / "bootstrap").mkdir()
    program(own / "sitecustomize.py", f"{sitecustomize}\nprint('own')\n")
    words: list[str | Path] = [
        sys.executable,
        program(
            folder / "train.py",
            f"{ATTACHES}import colorsys\nprint(hasattr(t.Trainer.train, '_spotguard_attaches'))",
        ),
    ]
    if in_front:
        done = started(folder, "sh", "-c", f'PYTHONPATH={own}:$PYTHONPATH exec "$@"', "sh", *words)
    else:
        done = started(folder, *words, PYTHONPATH=f"{own}:{folder}")
    assert done.stdout.splitlines()[0] == "own"
    assert done.stdout.splitlines()[-1] == "True"
    assert done.stderr == ""


def test_an_error_of_the_user_s_sitecustomize_is_shown_and_the_script_attaches(folder: Path) -> None:
    program(folder / "sitecustomize.py", "raise ValueError('of the user')\n")
    done = started(folder, *_script(folder))
    assert done.stdout == "attaches True\n"
    assert "ValueError: of the user" in done.stderr


#: Commands that keep the environment out. An installed wheel has a line for all but the last three.
DROPPED = {
    "python -I": '"$python" -I train.py',
    "python -E": '"$python" -E train.py',
    "another PYTHONPATH": 'PYTHONPATH=. "$python" train.py',
    "python -S": '"$python" -S train.py',
    "env -i": 'env -i "$python" train.py',
    "sudo": 'env -i PATH="$PATH" HOME="$HOME" SUDO_UID=0 "$python" train.py',
}


@pytest.mark.wholepath
@pytest.mark.parametrize("way", DROPPED)
def test_a_python_without_the_environment_is_named_by_the_agent(way: str, folder: Path) -> None:
    machine = Machine(folder)
    try:
        program(folder / "train.py", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{ATTACHES}")
        command = f"cd {folder}; python={sys.executable}; {DROPPED[way]}"
        running = machine.run("--attach", "sh", "-c", command)
        assert running.ended() == 0, running.err.text
        reached = PTH.exists() and way in ("python -I", "python -E", "another PYTHONPATH")
        assert running.out.text.strip() == f"attaches {reached}"
        named = (
            "--attach has guarded nothing: no Python that this run's environment reached" in running.err.text
        )
        assert named is not reached
    finally:
        machine.close()
