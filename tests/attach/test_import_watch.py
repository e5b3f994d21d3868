"""The start of each Python below `spotguard run --attach`, as far as no framework has to be installed for that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from spotguard import attach
from spotguard.hooks.ipc import protocol
from tests.attach.conftest import TRAINER

STARTUP = Path(attach.__file__).with_name("path")
IS_WATCHED = "any(type(each).__name__ == 'ImportWatch' for each in sys.meta_path)"
#: What loads the watch where no PYTHONPATH is read. An editable install has none.
PTH = Path(find_spec("spotguard").origin).parent.with_name("spotguard-attach.pth")  # type: ignore[union-attr, arg-type]


def python(folder: Path, code: str, *options: str, attached: bool = True) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(STARTUP), str(folder)])
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
    return subprocess.run(
        [sys.executable, *options, "-c", f"import sys\n{code}"],
        env=env | {"PYTHONPATH": path} | ({"SPOTGUARD_ATTACH": "yes"} if attached else {}),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def said(folder: Path, code: str, *options: str, attached: bool = True) -> str:
    done = python(folder, code, *options, attached=attached)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_python_of_another_run_is_as_it_was(folder: Path) -> None:
    code = "import transformers.trainer as t\nprint(len(sys.meta_path), t.Trainer.train.__qualname__)\nprint(sys.path[1:3])"
    watched = said(folder, code, attached=False)
    env = os.environ | {"PYTHONPATH": str(folder)}
    plain = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        env=env,
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    assert watched == plain.stdout.strip()


@pytest.mark.parametrize(
    ("module", "method"), [("transformers.trainer", "train"), ("lightning.pytorch.trainer.trainer", "fit")]
)
def test_a_trainer_attaches_as_it_begins_to_train(module: str, method: str, folder: Path) -> None:
    code = f"import {module} as m\nprint(hasattr(m.Trainer.{method}, '_spotguard_attaches'), vars(m.__spec__.loader).keys())"
    assert said(folder, code) == "True dict_keys(['name', 'path'])"


@pytest.mark.parametrize(
    "early",
    ["import transformers.trainer", "import importlib.machinery, sys\nsys.modules.pop('transformers', None)"],
    ids=["imported", "not imported"],
)
def test_a_module_that_was_imported_before_is_followed_too(early: str, folder: Path) -> None:
    """As by a startup file that comes first."""
    watch = STARTUP.with_name("import_watch.py")
    code = (
        f"{early}\nimport importlib.util\nspec = importlib.util.spec_from_file_location('again', {str(watch)!r})\n"
        "again = importlib.util.module_from_spec(spec)\nsys.meta_path[:] = [f for f in sys.meta_path if "
        "type(f).__name__ != 'ImportWatch']\nspec.loader.exec_module(again)\nagain.begin()\nagain.begin()\n"
        "import transformers.trainer as t\nprint(hasattr(t.Trainer.train, '_spotguard_attaches'), "
        "sum(type(f).__name__ == 'ImportWatch' for f in sys.meta_path))"
    )
    assert said(folder, code) == "True 1"


def test_a_module_that_is_being_imported_is_followed_behind_its_import(folder: Path) -> None:
    """Its own code imports what begins to watch."""
    watch = STARTUP.with_name("import_watch.py")
    begins = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('watch', {str(watch)!r})\n"
        "watch = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(watch)\n"
        "import os\nos.environ['SPOTGUARD_ATTACH'] = 'yes'\nwatch.begin()\n"
    )
    (folder / "transformers" / "trainer.py").write_text(begins + TRAINER)
    code = "import transformers.trainer as t\nimport colorsys\nprint(hasattr(t.Trainer.train, '_spotguard_attaches'))"
    assert said(folder, code, attached=False) == "True"


def test_the_sitecustomize_of_the_user_runs_behind_ours(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.own = True\n")
    code = f"print(sys.own, sys.modules['sitecustomize'].__file__ == {str(folder / 'sitecustomize.py')!r}, {IS_WATCHED})"
    assert said(folder, code) == "True True True"


def test_a_spawned_child_watches_and_says_nothing_at_its_end(folder: Path) -> None:
    """A rank of `mp.spawn` trains there; a loader's worker never calls a Trainer."""
    (folder / "child.py").write_text(
        f"import sys\ndef look():\n    import torch\n    print({IS_WATCHED}, flush=True)\n"
    )
    code = (
        "import multiprocessing, child\nif __name__ == '__main__':\n    for method in ('spawn', 'forkserver'):\n"
        "        process = multiprocessing.get_context(method).Process(target=child.look)\n"
        "        process.start()\n        process.join()"
    )
    assert said(folder, code).split() == ["True", "True"]


def test_modules_of_one_zip_file_are_imported_as_they_were(folder: Path) -> None:
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("transformers/__init__.py", "")
        archive.writestr("transformers/other.py", "")
        archive.writestr("transformers/trainer.py", TRAINER)
    (folder / "transformers" / "trainer.py").unlink()
    (folder / "transformers").rmdir()
    code = (
        "sys.path.insert(0, 'all.zip')\nimport importlib.util\nimportlib.util.find_spec('transformers.trainer')\n"
        "import transformers.other, transformers.trainer as t\nprint(hasattr(t.Trainer.train, '_spotguard_attaches'))"
    )
    assert said(folder, code) == "True"


def test_an_import_error_of_the_user_s_sitecustomize_is_shown(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import there_is_no_such_module\n")
    assert "there_is_no_such_module" in python(folder, "").stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import torch", "neither the Trainer of transformers nor Lightning's was imported"),
        ("import torch, accelerate", "accelerate leaves the loop to the script, which then needs some lines"),
        (
            "import torch, transformers.trainer",
            "transformers.trainer was imported, and its Trainer.train() never called",
        ),
    ],
)
def test_a_process_that_may_have_trained_says_why_nothing_was_attached(
    code: str, words: str, folder: Path
) -> None:
    done = python(folder, code)
    assert done.stderr.splitlines()[0].startswith(f"spotguard run --attach: nothing was attached: {words}")


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import torch, os\nos.environ['RANK'] = '1'",
        "import torch\nsys.argv[0] = '/usr/bin/torchrun'",
    ],
)
def test_a_tool_a_launcher_and_a_later_rank_say_nothing(code: str, folder: Path) -> None:
    assert said(folder, code) == ""


def test_a_training_within_another_one_leaves_the_guard_to_that(folder: Path) -> None:
    """As the probe of a callback. Behind it, and behind an error, the next training is guarded."""
    (folder / "transformers" / "trainer.py").write_text(
        "class Trainer:\n    inner = None\n    def train(self):\n"
        "        if self.inner == 'error': raise ValueError\n        return self.inner and self.inner.train()\n"
    )
    code = (
        "import transformers.trainer as t, types\nfrom spotguard.attach import import_watch\nseen = []\n"
        "note = lambda trainer, train, given, named: (seen.append(trainer), (given, named))[1]\n"
        "sys.modules['transformers'].trainer.Trainer.train.__globals__['_trainers'] = "
        "lambda name: types.SimpleNamespace(attach_transformers=note)\n"
        "outer, probe, last = t.Trainer(), t.Trainer(), t.Trainer()\nouter.inner = probe\nouter.train()\n"
        "last.inner = 'error'\ntry: last.train()\nexcept ValueError: pass\nlast.inner = None\nlast.train()\n"
        "print(seen == [outer, last, last])"
    )
    done = python(folder, code)
    assert (done.stdout.strip(), done.returncode) == ("True", 0)
    assert done.stderr.count("a Trainer begins within the training of a Trainer: not guarded") == 1


def agent_hears(folder: Path, code: str) -> list[str]:
    """What a process tells the agent of why nothing is attached in it."""
    path = folder / "s"
    told: list[str] = []
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(path))
        agent.listen()
        python(folder, f"import os\nos.environ['SPOTGUARD_SOCKET'] = {str(path)!r}\n{code}")
        agent.setblocking(False)
        while True:
            try:
                connection, _ = agent.accept()
            except BlockingIOError:
                return told
            with connection:
                (message,) = protocol.Peer(protocol.Role.NEW).feed(connection.recv(4096))
            assert isinstance(message, protocol.Unattached)
            told.append(message.why)


def test_the_agent_hears_of_an_imported_trainer_and_of_its_end(folder: Path) -> None:
    first, last = agent_hears(folder, "import torch, transformers.trainer")
    assert first == "transformers.trainer was imported, and its Trainer.train() not called yet"
    assert last == "transformers.trainer was imported, and its Trainer.train() never called"


def test_the_agent_hears_nothing_of_a_later_rank(folder: Path) -> None:
    assert agent_hears(folder, "os.environ['RANK'] = '1'\nimport torch, transformers.trainer") == []


@pytest.mark.skipif(not PTH.exists(), reason="an editable install has no startup line")
@pytest.mark.parametrize("option", ["-I", "-E", "-s", "-P"])
def test_an_isolated_python_watches_by_the_startup_line_of_the_wheel(option: str, folder: Path) -> None:
    assert said(folder, f"print({IS_WATCHED})", option) == "True"
