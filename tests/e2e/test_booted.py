"""What `spotguard bootstrap` prints, executed by a real cloud-init on a real systemd: from a bare machine to the next one.

Each test boots one machine or two, so these are the soak's: `scripts/boot-image`, then pytest -m soak tests/e2e/test_booted.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.booted import IMAGE, STORE, Booted, lay_out_index, require_image
from tests.e2e.harness import in_order
from tests.e2e.machines import Cloud
from tests.servers.swift import SECRET_KEY, USER, Swift
from tests.wheel import build_wheel

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.soak, pytest.mark.timeout(900)]

#: Some 50 steps a second, for ever; it says when it has got going.
TRAINING = """
import threading, torch, spotguard
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
guard = spotguard.register(model=model, optimizer=optimizer)
pause = threading.Event()
for step in guard.steps(1_000_000):
    optimizer.zero_grad(); model(torch.ones(4, 64)).sum().backward(); optimizer.step()
    pause.wait(0.02)
    if step % 50 == 49: print("fifty more steps")
"""


#: sudo's secure_path, as Debian has it.
SUDOS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's /srv: an index with this checkout's wheel, and the training script."""
    require_image()
    folder = tmp_path_factory.mktemp("files")
    wheel = build_wheel(tmp_path_factory.mktemp("built"))
    lay_out_index([wheel, *(IMAGE / "wheels").glob("*.whl")], folder / "index")
    (folder / "train.py").write_text(TRAINING)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Any user of any machine may write to it."""
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def user_data(cloud: str, *words: str, script: str = "train.py") -> str:
    ours = [sys.executable, "-m", "spotguard", "bootstrap", cloud]
    index = ["--package", "spotguard", "--index", "file:///srv/index"]
    job = ["--store", "file:///mnt/store", "--run-id", "gpt", "--directory", "/srv", "--every", "off"]
    command = [*ours, *index, *job, *words, "--", "python", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def on_the_machine(files: Path) -> str:
    """Where its image has spotguard's wheel."""
    (wheel,) = (files / "index/spotguard").glob("*.whl")
    return f"/srv/index/spotguard/{wheel.name}"


def bootcmd(*lines: str) -> str:
    """What the page adds to user-data: cloud-init runs it at every boot, before anything of ours."""
    return "bootcmd:\n" + "".join(f"  - {line}\n" for line in lines)


def committed(store: Path) -> list[int]:
    """The steps of what is whole, oldest first."""
    names = (path.parent.name for path in store.glob("gpt/checkpoints/*/COMMIT.json"))
    return [step for _, step, _ in in_order(names)]


@pytest.mark.parametrize(
    ("cloud", "words"),
    [("aws", ["--then", "poweroff"]), ("gcp", []), ("gcp", ["--startup-script"]), ("azure", [])],
    ids=str,
)
def test_a_machine_is_preempted_and_the_next_one_of_the_template_goes_on(
    cloud: Cloud, words: list[str], files: Path, store: Path, tmp_path: Path
) -> None:
    """Nobody touches either: the first saves at the notice, the second starts at its step."""
    printed = user_data(cloud, *words)
    with Booted(tmp_path, "first", cloud, printed, files=files, store=store) as first:
        first.boot()
        first.until("fifty more steps")
        assert "watches for this run" in first.journal()
        if "--startup-script" not in words:
            assert "Valid" in first.run("cloud-init", "schema", "--system")
        first.service.preempt()
        first.until("COMMITTED step")
        first.until("exit code 75")
        first.until("Scheduled restart job")
        assert "is over" not in first.journal(), "75 is no end"
        first.cut_power()
    (step,) = committed(store)
    assert step >= 50
    with Booted(tmp_path, "second", cloud, printed, files=files, store=store) as second:
        second.boot()
        second.until(f"training continues at step {step} ")
        second.until("fifty more steps")
    assert committed(store) == [step]


def test_the_power_button_is_a_notice_and_the_next_boot_finds_everything_set_up(
    files: Path, store: Path, tmp_path: Path
) -> None:
    """An ACPI shutdown without a word of the cloud's: the job saves while network, store and agent are still there."""
    with Booted(tmp_path, "machine", "aws", user_data("aws"), files=files, store=store) as machine:
        machine.boot()
        machine.until("fifty more steps")
        machine.press_power_button()
        said = machine.journal()
        assert "signal notice from SIGTERM" in said
        assert "COMMITTED step" in said
        (step,) = committed(store)
        machine.boot()
        machine.until(f"training continues at step {step} ")
        assert machine.log().count("run gpt is set up already") == 1
        assert machine.log().count("installing spotguard") == 1
        assert "no torch is here" not in machine.log()
        assert "run gpt (pid " in machine.run("env", f"PATH={SUDOS}", "spotguard", "status")


def test_the_store_may_be_s3_and_what_the_job_must_know_a_file_of_the_machine(
    files: Path, store: Path, swift: Swift, tmp_path: Path
) -> None:
    """Keys that user-data must not hold: cloud-init fetches them at each boot, and pip, `--prepare` and the job have them."""
    url = f"{swift.fresh()}/prefix?endpoint=http://{STORE}&region=us-east-1"
    words = ["--package", on_the_machine(files), "--store", url]
    words += [
        "--prepare",
        'test -n "$AWS_SECRET_ACCESS_KEY" && echo "$(id -un) $AWS_ACCESS_KEY_ID" >~/prepared',
    ]
    keys = f"printf 'AWS_ACCESS_KEY_ID={USER}\\nAWS_SECRET_ACCESS_KEY={SECRET_KEY}\\n'"
    secrets = "/etc/spotguard/runs/gpt.env"
    printed = user_data("aws", *words) + bootcmd("mkdir -p /etc/spotguard/runs", f"{keys} >{secrets}")
    with Booted(
        tmp_path, "first", "aws", printed, files=files, store=store, upstream=swift.endpoint
    ) as first:
        first.boot()
        first.until("fifty more steps")
        assert first.run("stat", "--format=%a %U", secrets) == "600 root\n"
        assert first.run("cat", "/home/train/prepared") == f"train {USER}\n"
        first.service.preempt()
        first.until("COMMITTED step")
        (step,) = re.findall(r"COMMITTED step (\d+)", first.journal())
        first.cut_power()
    with Booted(
        tmp_path, "second", "aws", printed, files=files, store=store, upstream=swift.endpoint
    ) as second:
        second.boot()
        second.until(f"training continues at step {step} ")
        second.until("fifty more steps")
    assert committed(store) == []


@pytest.mark.parametrize(
    ("restart", "script", "code"),
    [("no", "/dev/null", 0), ("on-failure", "/nowhere", 2)],
)
def test_a_machine_is_switched_off_when_its_job_is_over(
    restart: str, script: str, code: int, files: Path, store: Path, tmp_path: Path
) -> None:
    """A minute later, by what `--then` says. Called wrongly, it is over as well: the next start would be as wrong."""
    words = ["--restart", restart, "--then", "echo $SPOTGUARD_ENDED >>/mnt/store/ended; poweroff"]
    printed = user_data("aws", *words, script=script)
    with Booted(tmp_path, "machine", "aws", printed, files=files, store=store) as machine:
        machine.boot()
        machine.until(f"spotguard: run gpt is over ({code})")
        assert not (store / "ended").exists()
        machine.until_off()
    assert (store / "ended").read_text() == f"{code}\n"


def test_an_agent_that_hangs_is_started_again_and_the_run_comes_back_to_it(
    files: Path, store: Path, tmp_path: Path
) -> None:
    """systemd misses its sign of life. The run looks for itself meanwhile."""
    with Booted(tmp_path, "machine", "aws", user_data("aws"), files=files, store=store) as machine:
        machine.boot()
        machine.until("fifty more steps")
        machine.until("aws spot/instance-action, through the service agent: seeing")
        machine.run("systemctl", "kill", "--signal=STOP", "spotguard-agent.service")
        machine.until("Watchdog timeout")
        machine.until("aws spot/instance-action, through the service agent: seeing", times=2)
        machine.service.preempt()
        machine.until("COMMITTED step")
        assert len(committed(store)) == 1


def test_a_shutdown_is_a_notice_to_who_is_registered_with_the_service(
    files: Path, store: Path, tmp_path: Path
) -> None:
    """A process without a run of its own, in a unit that systemd stops after the agent: the agent waits for its save."""
    with Booted(tmp_path, "machine", "aws", user_data("aws"), files=files, store=store) as machine:
        machine.boot()
        machine.until("fifty more steps")
        given = {
            "SPOTGUARD_SOCKET": "/run/spotguard/agent.sock",
            "SPOTGUARD_RUN_ID": "direct",
            "SPOTGUARD_STORE": "file:///mnt/store",
            "SPOTGUARD_EVERY": "off",
            "PYTHONUNBUFFERED": "1",
        }
        unit = [
            "--unit=direct.service",
            "--uid=train",
            "--property=Before=spotguard-agent.service",
        ]
        variables = [f"--setenv={name}={value}" for name, value in given.items()]
        machine.run("systemd-run", *unit, *variables, "/opt/spotguard/bin/python", "/srv/train.py")
        machine.until("training begins at step 0 of run direct")
        machine.until("fifty more steps", times=machine.journal().count("fifty more steps") + 3)
        machine.press_power_button()
        assert "all processes were asked to leave" in machine.journal()
    assert list(store.glob("direct/checkpoints/*/COMMIT.json"))
