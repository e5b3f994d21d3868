"""The stacks of training processes in which no Python runs, read from outside by py-spy, and kept in the run's store.

Native code that holds the interpreter's lock lets no thread of its process run, so such a process can write nothing itself. py-spy
reads its memory, which the kernel may refuse: it takes the same user and `ptrace_scope` 0, or CAP_SYS_PTRACE. The record has files,
lines and functions, and no values, as that of a rank that writes its own.

The agent starts it for one stall, and kills it if it takes too long.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...providers.redaction import redacted_text
from ...providers.text import TEXT, clip

#: Seconds for py-spy and one process, which stands still meanwhile: less than between two looks of the agent, which would take it
#: for one that a person has stopped (`agent.core.failures.stall.OLD`). And for the store.
_READING, _STORING = 8.0, 20.0
#: Bytes of the most that is kept of one process, and its frames.
_MOST, _FRAMES = 64 * 1024, 200
_NONE = "py-spy is not installed, so its stacks are not known"
_REFUSED = "py-spy may not read it (kernel.yama.ptrace_scope, CAP_SYS_PTRACE)"


def read_stacks(pid: int, reader: str | None) -> tuple[list[str], str]:
    """Return the stack of each thread of a process, those that hold the lock first; and why there is none, or "".

    Args:
        pid: the process.
        reader: the path of py-spy; None: it is not installed.
    """
    if reader is None:
        return [], _NONE
    why = ""
    for more in (["--native"], []):  # not every machine's native frames can be read
        # Never --locals: values may be secrets.
        command = [reader, "dump", "--json", "--full-filenames", *more, "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_READING, check=False)
            if done.returncode == 0:
                return _texts(json.loads(done.stdout)), ""
            why = _reason(done.stderr.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            return (
                [],
                f"py-spy took more than {_READING:.0f} s",
            )  # a thread that waits in the kernel for good stops never
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"py-spy: {type(error).__name__}"
    return [], why


def _reason(errors: str) -> str:
    if "ermission" in errors or "not permitted" in errors:
        return _REFUSED
    lines = errors.strip().splitlines() or ["it gave no reason"]
    return f"py-spy: {clip(lines[-1].strip(), TEXT)}"


def _texts(threads: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the stacks in the form in which a rank writes its own: the outermost frame first."""
    texts, size = [], 0
    for each in sorted(threads, key=lambda each: not each["owns_gil"]):
        name = each["thread_name"] or "a thread without a name"
        holds = " (holds the interpreter's lock)" if each["owns_gil"] else ""
        frames = [_frame(frame) for frame in each["frames"][:_FRAMES]]
        text = "\n".join([f"{name}{holds}:", *reversed(frames)])
        if (size := size + len(text)) > _MOST:
            break
        texts.append(text)
    return texts


def _frame(frame: Mapping[str, Any]) -> str:
    place = f"{frame['filename']}:{frame['line']}" if frame["line"] else frame["filename"]
    return clip(redacted_text(f"  {place} in {frame['name']}"), TEXT)


def kernel_wait(pid: int) -> str:
    """Return the kernel's function in which the main thread of a process waits, as "futex_wait_queue"; "" if it is not told."""
    try:
        found = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return ""
    return "" if found == "0" else clip(found, TEXT)


def find_reader() -> str | None:
    """Return the path of py-spy: on PATH, or beside this Python."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def main() -> int:
    """Read the stacks of the processes that stdin names, log them on stdout, and keep them."""
    from ...hooks.checkpoint.attempts import newest_claim
    from ...hooks.checkpoint.format.keys import check_run_id, held_stacks_key
    from ...providers.errors import SpotguardError
    from ...providers.stores.factory import open_store

    given = json.load(sys.stdin)
    reader, failed = find_reader(), False
    for each in given["ranks"]:
        pid, rank, attempt = each["pid"], each["rank"], each["attempt"]
        stacks, why = read_stacks(pid, reader)
        waits = kernel_wait(pid)
        in_kernel = f"; its main thread waits in the kernel at {waits}" if waits else ""
        seen = stacks[0] if stacks else why
        print(f"rank {rank} (pid {pid}) stands still in native code: {seen}{in_kernel}", flush=True)
        record = {"by": "agent", "pid": pid, "ended": time.time(), "step": given["step"], "stacks": stacks}
        record |= {"why": why, "kernel": waits}
        try:  # at once: the agent ends this process if many ranks take too long
            store, run_id = open_store(given["store"]), check_run_id(given["run_id"])
            if attempt < 0:  # the process has not told it
                attempt = newest_claim(store, run_id, timeout=_STORING)
            key = held_stacks_key(run_id, attempt, rank, record["ended"])
            store.put(key, memoryview(json.dumps(record, indent=1).encode()), timeout=_STORING)
        except SpotguardError as error:
            print(f"the stacks are not kept: {' '.join(str(error).split())}", flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
