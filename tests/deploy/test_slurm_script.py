"""The batch script for Slurm comes out of the package as it lies there, and what it tells `srun` and `scontrol`, which are fakes here.

What comes of it on a real Slurm, tests/e2e/test_slurm.py shows.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from spotguard.cli.main import main
from spotguard.deploy.slurm import batch_script

TIMEOUT = 100.0
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "launch" / "slurm.md"

#: In the place of Slurm's programs: they write down what they were told, and answer as they were asked to.
FAKES = {
    "srun": 'env >"$SAID/environment"; [ -z "$LEFT" ] || echo "$LEFT" >"$SPOTGUARD_EXCLUDE_FILE"; exit "$ENDS"',
    "scontrol": """
case "$1" in
show) printf 'node1\\nnode2\\n' ;;
--oneliner) printf 'JobId=4710 ExcNodeList=node7 NodeList=\\nJobId=4711 Name=a ReqNodeList=(null) ExcNodeList=%s NodeList=\\n' "$BEFORE" ;;
requeue) echo "$@" >"$SAID/requeued" ;;
update) echo "$@" >"$SAID/updated" ;;
esac""",
}


def test_it_is_printed_whole_and_is_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "slurm"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/bash\n")
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=TIMEOUT)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_slurm_reads_each_of_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """It stops looking for them at the first command; and the signal is the tasks', since srun makes SIGKILL of its own."""
    main(["deploy", "slurm"])
    text = capsys.readouterr().out
    head, _, below = text.partition("\n\n")
    assert re.findall("^#SBATCH +(.*)$", head, re.MULTILINE) == [
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@120",
    ]
    assert "#SBATCH" not in below


class Script:
    """The batch script, as slurmd starts it, with those programs in its PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, does in FAKES.items():
            (folder / name).write_text(f"#!/bin/sh\n{does}\n")
            (folder / name).chmod(0o755)

    def run(self, ends: int = 0, **env: str) -> int:
        """Its exit code, where `srun` ends with `ends`."""
        said = {"PATH": f"{self._folder}:{os.defpath}", "SAID": str(self._folder), "ENDS": str(ends)}
        job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node1", "SLURM_NNODES": "1"}
        done = subprocess.run(
            ["bash", "-c", batch_script(), "train.sbatch", "true"],
            env=said | job | env,
            cwd=self._folder,
            timeout=TIMEOUT,
        )
        return done.returncode

    def passed_on(self) -> dict[str, str]:
        """The environment that `srun` had, which is that of each `spotguard run`."""
        lines = (self._folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def requeued(self) -> str:
        return self._read("requeued")

    def updated(self) -> str:
        return self._read("updated")

    def _read(self, name: str) -> str:
        path = self._folder / name
        return path.read_text().strip() if path.exists() else ""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_sockets_do_not_lie_in_the_folder_of_whoevers_session_submitted_it(
    script: Script, tmp_path: Path
) -> None:
    """On the node that folder is another session's, or nobody's, and goes when that one ends: in the middle of the job."""
    script.run(XDG_RUNTIME_DIR=str(tmp_path), SPOTGUARD_STORE="file:///store")
    assert "XDG_RUNTIME_DIR" not in script.passed_on()
    assert script.passed_on()["SPOTGUARD_STORE"] == "file:///store", "all else comes along"


@pytest.mark.parametrize(
    ("said", "ends", "comes_back"),
    [
        ({}, 75, True),
        ({"SPOTGUARD_EXIT_CODE": "143"}, 143, True),
        ({"SPOTGUARD_EXIT_CODE": ""}, 75, True),
        ({"SPOTGUARD_EXIT_CODE": "143"}, 75, False),
        ({}, 143, False),
        ({}, 1, False),
        ({}, 0, False),
    ],
)
def test_only_an_end_after_a_preemption_is_requeued(
    script: Script, said: dict[str, str], ends: int, comes_back: bool
) -> None:
    assert script.run(ends, **said) == ends
    assert script.requeued() == ("requeue incomplete 4711" if comes_back else "")


@pytest.mark.parametrize(
    ("left", "before", "excluded"),
    [
        ("node2", "(null)", "node2"),
        ("node1.cluster.local", "(null)", "node1"),
        ("node2", "node[5-6]", "node[5-6],node2"),
        ("node2\nnode1\nnode2", "(null)", "node1,node2"),
        ("elsewhere", "(null)", ""),
        ("", "node5", ""),
    ],
)
def test_a_node_that_was_left_is_excluded_beside_those_that_are(
    script: Script, tmp_path: Path, left: str, before: str, excluded: str
) -> None:
    """Names that are none of the job's nodes are not passed on."""
    assert script.run(75, LEFT=left, BEFORE=before) == 75
    assert script.updated() == (f"update JobId=4711 ExcNodeList={excluded}" if excluded else "")
    assert script.requeued() == "requeue incomplete 4711"
    assert list(tmp_path.glob(".spotguard*")) == []


def test_a_task_of_an_array_goes_back_alone(script: Script) -> None:
    """The last one has the number of the whole array as its job's."""
    array = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2"}
    script.run(75, LEFT="node1", BEFORE="(null)", **array)
    assert script.requeued() == "requeue incomplete 4711_2"
    assert script.updated() == "update JobId=4711_2 ExcNodeList=node1"


def test_a_job_that_does_not_come_back_excludes_nothing(script: Script, tmp_path: Path) -> None:
    """Nor one that finds the names of an earlier life, which was killed."""
    script.run(1, LEFT="node2", BEFORE="(null)")
    assert script.updated() == ""
    (tmp_path / ".spotguard-exclude-4711").write_text("node2\n")
    script.run(75, BEFORE="(null)")
    assert (script.requeued(), script.updated()) == ("requeue incomplete 4711", "")


def test_a_task_has_the_cores_that_sbatch_was_asked_for(script: Script) -> None:
    """`srun` does not take them over; and who does not ask at all has one, for all ranks of the node."""
    script.run(SLURM_CPUS_PER_TASK="96")
    assert script.passed_on()["SRUN_CPUS_PER_TASK"] == "96"
    (shown,) = re.findall(r"^#   (sbatch .*)$", batch_script(), re.MULTILINE)
    assert f"$ {shown}\n" in PAGE.read_text(), "the page shows the same line"
    assert re.search(r" --cpus-per-task=\d+ ", shown)
