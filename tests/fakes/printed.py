"""The output of small programs, each in a process of its own: pytest has set up logging in this one.

The processes are forked from one that has loaded torch, which takes each of them two seconds by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FRONT_DOOR = Path(__file__).parents[2] / "packaging"
#: Forks for each program, one after the other, and prints what all of them have written to both outputs, and their codes.
FORKS = """
import json, os, sys
import spotguard.hooks.restore.startup
ends = []
for program in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(writing, 1), os.dup2(writing, 2), os.close(reading), os.close(writing)
        exec(program, {})
        os._exit(0)  # at its end an interpreter with torch takes half a second
    os.close(writing)
    with open(reading) as said:
        ends.append([said.read(), os.waitpid(pid, 0)[1]])
print(json.dumps(ends))
"""


def printed(programs: Sequence[str]) -> list[str]:
    """Return the outputs of each program. All of them have ended well."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(programs)],
        capture_output=True,
        text=True,
        cwd=FRONT_DOOR,
        check=True,
        timeout=100,
    )
    ends: list[tuple[str, int]] = json.loads(done.stdout)
    assert [status for _, status in ends] == [0] * len(programs), ends
    return [said for said, _ in ends]
