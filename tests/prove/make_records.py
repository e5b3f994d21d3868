"""Makes the records that `test_causes` reads: `PYTHONPATH=packaging .venv/bin/python tests/prove/make_records.py [NAME...]`.

Each program trains twice undisturbed, and once with a notice by hand and a resume. What the lives have written down is kept, so
that comparison and causes are tested without torch. Make them anew when the recorder writes something else.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from spotguard.hooks.recorder.plan import Action
from spotguard.prove.copies import Original
from spotguard.prove.runner import Runner, write_startup
from spotguard.prove.series import BY_HAND, UNDISTURBED, LifeSeries, SeriesRunner
from spotguard.providers.clock import SystemClock

HERE = Path(__file__).parent
STEPS = 8
#: Where another action shows it.
BEHIND_SAVE = Action("kill", 4, BY_HAND)
ACTIONS = {
    "plant_gathering": Action("preempt", 5),
    "plant_own_file": Action("kill", 6),
    "plant_anneal": BEHIND_SAVE,
    "exact_anneal": BEHIND_SAVE,
}


def make(name: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    (folder / "work").mkdir()
    shutil.copy(HERE / "programs" / f"{name}.py", folder / "work" / "train.py")
    write_startup(folder / "startup")
    runner = Runner([sys.executable, "train.py"], os.environ, STEPS, 110.0, folder, SystemClock())
    lived = SeriesRunner(runner, Original(folder / "work"), folder, folder / "startup", 2, print)
    action = ACTIONS.get(name, Action("preempt", 4))
    every = 2 if action.kind == "kill" and action.at != BY_HAND else 0
    lived.run([*UNDISTURBED, LifeSeries("preempted", (action, None), every=every)])
    found: dict[str, Any] = {
        series: [_of(life.console.parent, life.failed) for life in of] for series, of in lived.lives.items()
    }
    text = json.dumps(found, separators=(",", ":")).replace(str(folder), "/proved")
    with gzip.GzipFile(HERE / "records" / f"{name}.json.gz", "wb", mtime=0) as file:
        file.write(text.encode())
    shutil.rmtree(folder)


def _of(folder: Path, failed: str) -> dict[str, Any]:
    """Without what Python itself reads, and without what spotguard writes to its store."""
    lines = [line for path in sorted(folder.glob("files-*.jsonl")) for line in path.read_text().splitlines()]
    work = f"{folder.parent / 'work'}{os.sep}"
    return {
        "rank": [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()],
        "files": [each for line in lines if (each := json.loads(line))[1].startswith(work)],
        "failed": failed,
    }


if __name__ == "__main__":
    (HERE / "records").mkdir(exist_ok=True)
    for each in sys.argv[1:] or sorted(path.stem for path in (HERE / "programs").glob("*.py")):
        if not each.endswith("ranks"):
            make(each)
