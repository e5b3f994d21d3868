"""The units that a machine is given, and the parts of its setup that can be tried without being root on it.

All of it together boots in tests/e2e/test_booted.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.bootstrap.user_data import STORES, functions_of, printed, script_of
from tests.docs.pages import ROOT
from tests.fixtures_servers import RequireServer

UNITS = resources.files("spotguard.bootstrap") / "systemd-units"


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they are shipped, but for a program that is here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    for name in ("spotguard-agent.service", "spotguard-run@.service"):
        text = UNITS.joinpath(name).read_text()
        (tmp_path / name).write_text(
            re.sub("^ExecStart=.*$", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        )
    return tmp_path


def test_systemd_understands_every_line(units: Path) -> None:
    """An unknown key is a warning and no failure (seen), so nothing may be said at all."""
    names = ["spotguard-agent.service", "spotguard-run@gpt.service"]
    (units / names[1]).symlink_to("spotguard-run@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{name}" for name in names)],
        cwd=units,
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "spotguard" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_agent_is_shut_in(units: Path) -> None:
    """`systemd-analyze security` says 3.0 at the most, of 10."""
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "./spotguard-agent.service"]
    done = subprocess.run(words, cwd=units, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_job_outlives_the_beginning_of_a_shutdown() -> None:
    """What is started later is stopped earlier; SIGTERM goes to the guard alone; no window is longer than its patience."""
    said = UNITS.joinpath("spotguard-run@.service").read_text()
    after = " ".join(re.findall(r"^After=(.*)$", said, flags=re.MULTILINE)).split()
    assert {"network-online.target", "remote-fs.target", "spotguard-agent.service"} <= set(after)
    assert {"waagent.service", "walinuxagent.service", "nvidia-fabricmanager.service"} <= set(after)
    assert "\nKillMode=mixed\n" in said
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", said, flags=re.MULTILINE)[0]) > 120 + 30
    assert "\nRestartForceExitStatus=75\n" in said


def test_a_usage_error_is_not_repeated_every_few_seconds() -> None:
    """`Restart=` in the drop-in has no say in it: a deadline that is past stays past."""
    said = UNITS.joinpath("spotguard-run@.service").read_text()
    assert "\nRestartPreventExitStatus=2 78\n" in said


# --- parts of the setup ---------------------------------------------------------------------------------------


class Part:
    """The functions of a printed script, in a machine of folders: no root, and systemd's programs only write down."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.folder, self.etc, self.units = folder, folder / "etc", folder / "units"
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.called = folder / "called"
        self.called.touch()
        self.program("systemd-run", f'echo "$*" >>{self.called}')
        self.program("systemctl", 'case "$*" in *is-active*) exit 3 ;; esac')
        home = folder / "home" / "bin"
        home.mkdir(parents=True)
        (home / "python").write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT / "packaging"} exec {sys.executable} "$@"\n'
        )
        (home / "python").chmod(0o755)
        script = functions_of(printed(capsys, "gcp", "--startup-script", *words))
        for name, place in (("home", home.parent), ("etc", self.etc), ("units", self.units)):
            script = re.sub(rf"^{name}=/.*$", f"{name}={place}", script, flags=re.MULTILINE)
        self._script = script

    def program(self, name: str, body: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def does(self, what: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f"{self._script}\n{what}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", **variables},
            check=False,
        )

    def ends(self, result: str, status: str) -> str:
        """As systemd calls it when the unit has ended; what that has set up."""
        self.called.write_text("")
        env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        env |= {"SERVICE_RESULT": result, "EXIT_STATUS": status}
        subprocess.run([str(self.etc / "runs/gpt-7b.over")], env=env, check=True, stdout=subprocess.DEVNULL)
        return self.called.read_text()


def test_a_python_may_lie_in_a_folder_with_blanks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "my own" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = Part(tmp_path, capsys, "--python", str(python)).does("find_python")
    assert (done.returncode, done.stdout) == (0, f"{python}\n")


def test_systemd_understands_what_the_setup_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders with everything that a unit reads in its own way, and what is run at the end."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    directory = tmp_path / 'a b%i"c'
    directory.mkdir()
    part = Part(
        tmp_path, capsys, "--directory", str(directory), "--then", "poweroff", "--restart", "on-failure"
    )
    done = part.does("write_the_end; trap - EXIT; write_files", path='/opt/a b%/"c\\d')
    assert done.returncode == 0, done.stderr
    job = part.units / "spotguard-run@gpt-7b.service.d/job.conf"
    assert "\nRestart=on-failure\nTimeoutStopSec=180\n" in job.read_text()
    (part.units / "spotguard-run@gpt-7b.service").symlink_to("spotguard-run@.service")
    unit = part.units / "spotguard-run@.service"
    unit.write_text(re.sub("^ExecStart=.*$", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE))
    shown = subprocess.run(
        ["systemd-analyze", "verify", "./spotguard-run@gpt-7b.service"],
        cwd=part.units,
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning", "SYSTEMD_UNIT_PATH": f"{part.units}:"},
        check=False,
    )
    assert [line for line in shown.stderr.splitlines() if "spotguard-run" in line] == []
    assert shown.returncode == 0


@pytest.mark.parametrize(
    ("cloud", "words"), [*((cloud, ()) for cloud in STORES), ("gcp", ("--startup-script",))]
)
def test_shellcheck_finds_nothing_in_what_is_printed(
    cloud: str,
    words: tuple[str, ...],
    require_server: RequireServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor in the scripts that the setup writes, with every option that puts something into one."""
    wishes = ["--prepare", 'git clone "$GIT_URL"', "--then", 'logger "$SPOTGUARD_ENDED"', "--user", "ubuntu"]
    text = printed(capsys, cloud, *words, *wishes)
    script = tmp_path / "setup"
    script.write_text(text if words else script_of(text))
    part = Part(tmp_path, capsys, *wishes)
    done = part.does("write_the_end; trap - EXIT; write_files", path="/opt/spotguard/bin")
    assert done.returncode == 0, done.stderr
    runs = part.etc / "runs"
    scripts = [script, runs / "gpt-7b.sh", runs / "gpt-7b.over", runs / "gpt-7b.then"]
    done = subprocess.run(
        [require_server("shellcheck"), "--norc", *map(str, scripts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("restart", "result", "status", "is_over"),
    [
        ("no", "success", "0", True),
        ("no", "exit-code", "1", True),
        ("no", "signal", "KILL", True),
        ("no", "success", "75", False),
        ("no", "timeout", "KILL", False),
        # Stopped before `run` holds SIGTERM, and before there was a process at all.
        ("no", "success", "TERM", False),
        ("on-failure", "success", "TERM", False),
        ("no", "success", "", False),
        ("on-failure", "success", "0", True),
        ("on-failure", "exit-code", "1", False),
        # Said wrongly: the unit is not started again.
        ("on-failure", "exit-code", "2", True),
        ("on-failure", "signal", "2", False),
        ("on-failure", "success", "75", False),
        ("on-failure", "setup", "setup", True),
    ],
)
def test_the_then_command_runs_when_the_job_is_over_and_never_after_75(
    restart: str, result: str, status: str, is_over: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a minute, by a timer that can be stopped."""
    part = Part(tmp_path, capsys, "--restart", restart, "--then", "poweroff")
    assert part.does("write_the_end; trap - EXIT").returncode == 0
    said = part.ends(result, status)
    assert bool(said) is is_over
    if is_over:
        assert f"--on-active=60 --unit=spotguard-then --setenv=SPOTGUARD_ENDED={status} " in said
        assert (part.etc / "runs/gpt-7b.then").read_text() == "#!/bin/sh\npoweroff\n"


def test_the_then_command_has_the_secrets_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What refuses a token in `--then` names the file of secrets as the way out."""
    part = Part(tmp_path, capsys, "--then", 'curl -H "Authorization: Bearer $TOKEN" https://example.org')
    assert part.does("write_the_end; trap - EXIT").returncode == 0
    assert f"--property=EnvironmentFile=-{part.etc}/runs/gpt-7b.env " in part.ends("success", "0")


@pytest.mark.parametrize("aws", ["exit 0", "exit 255", None])
@pytest.mark.parametrize("ended", ["0", "1", "2", "78", "setup"])
def test_the_end_that_the_page_gives_a_group_switches_off_whatever_happened(
    ended: str, aws: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the job crashed, where the group could not be told, where the image has no `aws`."""
    page = ROOT.joinpath("docs/how-to/launch/bootstrap.md").read_text()
    (then,) = re.findall(r"--then '([^']*set-desired-capacity[^']*)'", page)
    part = Part(tmp_path, capsys)
    told = tmp_path / "told"
    part.program("poweroff", f"echo poweroff >>{told}")
    if aws is not None:
        part.program("aws", f"echo aws >>{told}; {aws}")
    subprocess.run(
        ["/bin/sh", "-c", then], env={"PATH": str(part.programs), "SPOTGUARD_ENDED": ended}, check=True
    )
    tells = ended in ("0", "2", "78") and aws is not None
    assert told.read_text().split() == (["aws", "poweroff"] if tells else ["poweroff"])


def test_a_setup_that_fails_is_an_end_unless_the_job_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Part(tmp_path, capsys, "--then", "poweroff")
    assert part.does("write_the_end; true").returncode == 0
    assert part.called.read_text() == ""
    assert part.does("write_the_end; die no").returncode == 1
    assert "SPOTGUARD_ENDED=setup" in part.called.read_text()
    part.called.write_text("")
    part.program("systemctl", "exit 0")
    assert part.does("write_the_end; die no").returncode == 1
    assert part.called.read_text() == ""


def test_nothing_comes_after_a_job_of_which_nothing_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where something was said before: a changed startup script is followed."""
    part = Part(tmp_path, capsys)
    (part.etc / "runs").mkdir(parents=True)
    (part.etc / "runs/gpt-7b.over").touch()
    assert part.does("write_the_end; die no").returncode == 1
    assert part.called.read_text() == ""
    assert list((part.etc / "runs").iterdir()) == []


def test_prepare_commands_have_the_users_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read by systemd, as the job's unit reads them, and not by a shell."""
    part = Part(tmp_path, capsys, "--prepare", "git clone https://me:$T@example.org/a", "--user", "ubuntu")
    (part.etc / "runs").mkdir(parents=True)
    said = f"state={tmp_path} path=/opt/bin:/bin directory='/a b'; prepare_job"
    assert part.does(said).returncode == 0
    called = part.called.read_text()
    assert f"--property=EnvironmentFile=-{part.etc}/runs/gpt-7b.env --setenv=PATH=/opt/bin:/bin " in called
    assert f"--uid=ubuntu --working-directory=/a b sh -e {part.etc}/runs/gpt-7b.prepare" in called
    assert (part.etc / "runs/gpt-7b.prepare").read_text() == "git clone https://me:$T@example.org/a\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a file is given to root by root")
def test_only_root_reads_what_is_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = Part(tmp_path, capsys)
    assert part.does("close_secrets").returncode == 0
    secrets = part.etc / "runs/gpt-7b.env"
    secrets.parent.mkdir(parents=True)
    secrets.write_text("HF_TOKEN=x\n")
    secrets.chmod(0o644)
    os.chown(secrets, 1, 1)
    assert part.does("close_secrets").returncode == 0
    seen = secrets.stat()
    assert (seen.st_mode & 0o777, seen.st_uid, seen.st_gid) == (0o600, 0, 0)
