"""The Dockerfile is built, and so are the two lines of the page; `spotguard run` is process 1, and `docker stop` is its notice.

Some minutes: `scripts/container-base` first, as root.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.deploy import containers
from tests.docs.pages import ROOT, blocks
from tests.docs.test_containers import after
from tests.e2e.harness import in_order
from tests.e2e.images import Engine
from tests.kubernetes import container, pod

pytestmark = [pytest.mark.soak, pytest.mark.wholepath, pytest.mark.timeout(900)]

#: A training script that goes on until it is told to leave.
TRAIN = ROOT / "tests" / "docs" / "programs" / "train.py"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.close()


def committed(store: Path) -> list[tuple[int, int, int]]:
    return in_order(path.parent.name for path in store.glob("gpt/checkpoints/*/COMMIT.json"))


def said_before_the_command(image: str) -> list[str]:
    """As the page says it."""
    words = after(image)
    return words[: words.index("torchrun")]


def test_the_printed_dockerfile_makes_the_agents_image(engine: Engine) -> None:
    """Not root, nothing of the build in it; it serves as the manifest says, with nothing of its own to write to, and ends when it is
    told to."""
    base = engine.base()
    context = engine.context("agent", containers.text("dockerfile"))
    (context / ".dockerignore").write_text("**/Dockerfile*\n")  # as `docker init` has it
    engine.build(
        "localhost/spotguard", context, "--build-arg", f"BASE={base}", "--build-arg", "INDEX=file:///secret"
    )
    made = json.loads(engine.said_by("image", "inspect", "localhost/spotguard"))[0]
    assert made["Config"]["User"] == "65532:65532"
    assert made["Config"]["Entrypoint"] == ["spotguard"]
    assert "secret" not in json.dumps(made)
    assert "secret" not in engine.said_by("history", "--no-trunc", "localhost/spotguard")

    words = container("agent", "aws", "agent")
    sockets = engine.folder / "spotguard"
    sockets.mkdir(mode=0o755)
    mount = ("--volume", f"{sockets}:/run/spotguard", "--read-only", "--read-only-tmpfs=false")
    rights = ("--cap-drop", "all", "--security-opt", "no-new-privileges")
    folder = container("agent", "aws", "folder")["command"]
    made_by = engine.run_container(
        "folder",
        "localhost/spotguard",
        *folder[1:],
        options=(*mount, *rights, "--cap-add", "chown,fowner", "--user", "0", "--entrypoint", folder[0]),
    )
    assert made_by.ended() == 0, made_by.account()
    assert (sockets.stat().st_mode & 0o7777, sockets.stat().st_uid) == (0o750, 65532)
    agent = engine.run_container(
        "agent",
        "localhost/spotguard",
        *words["args"],
        options=(*mount, *rights, "--env", "SPOTGUARD_PROVIDER=none"),
    )
    agent.err.until("serving at /run/spotguard/agent.sock")
    asked = engine.said_by("exec", "agent", *words["livenessProbe"]["exec"]["command"])
    assert json.loads(asked)["agents"][0]["pid"] == 1
    engine.said_by("stop", "--time", "60", "agent")
    assert agent.ended() == 0


@pytest.mark.torch
@pytest.mark.parametrize("way", ["the two lines of the page", "the printed Dockerfile"])
def test_docker_stop_is_a_notice_and_the_next_container_goes_on(engine: Engine, way: str) -> None:
    pytest.importorskip("torch")
    base = engine.base()
    if way == "the printed Dockerfile":
        context = engine.context("train", containers.text("dockerfile"))
        engine.build("localhost/train", context, "--build-arg", f"BASE={base}", "--build-arg", "EXTRA=s3")
        before = said_before_the_command("trainer")
    else:
        (lines,) = [
            block.text
            for block in blocks(ROOT / "docs/how-to/launch/containers.md")
            if block.notes.get("file") == "Dockerfile.train"
        ]
        context = engine.context("train", f"FROM {base}\nCOPY *.whl /wheels-of-the-index/\n{lines}")
        engine.build("localhost/train", context)
        before = said_before_the_command("train")
    shutil.copy(TRAIN, engine.folder)
    engine.store.mkdir()
    engine.store.chmod(0o1777)
    grace = pod("job", "aws")["terminationGracePeriodSeconds"]
    options = (
        *("--volume", f"{engine.folder}/train.py:/job/train.py:ro", "--volume", f"{engine.store}:/store"),
        *(
            "--env",
            "PYTHONUNBUFFERED=1",
            "--env",
            "PYTHONPATH=/site",
            "--env",
            "HOME=/tmp",
            "--env",
            "USER=train",
            "--user",
            "1000:1000",
        ),
        *("--env", "SPOTGUARD_STORE=file:///store", "--env", "SPOTGUARD_RUN_ID=gpt"),
        *("--env", f"SPOTGUARD_WINDOW={containers.window('aws')}", "--env", "SPOTGUARD_PROVIDER=none"),
    )
    for attempt in (1, 2):
        name = f"train{attempt}"
        running = engine.run_container(
            name, "localhost/train", *before, "python3", "/job/train.py", options=options
        )
        running.err.until("training continues at step" if attempt == 2 else "guarding pid")
        running.out.until(r"^step \d+: loss")
        assert engine.said_by("exec", name, "cat", "/proc/1/cmdline").split("\0")[1:3] == [
            "/usr/local/bin/spotguard",
            "run",
        ]
        engine.said_by("stop", "--time", str(grace), name)
        assert running.ended() == 75, running.account()
        assert "COMMITTED" in running.err.to_the_end()
        assert committed(engine.store)[-1][0] == attempt
    (_, first, _), (_, second, _) = [
        [each for each in committed(engine.store) if each[0] == attempt][-1] for attempt in (1, 2)
    ]
    assert second > first > 0
