"""DDP goes on bit for bit: with its buffers, which the first rank's are, and with what each rank draws. On more than two ranks that
needs buckets that are the same in every life of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import TIMEOUT

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "averaged.py"


#: By how it was played, and rank: what it has in the end.
Digests = dict[tuple[str, str], str]


def digests(folder: Path, *played: str) -> tuple[Digests, Digests]:
    """What six steps come to: in one life, and in two."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *played],
        cwd=folder,
        env={
            **os.environ,
            "SPOTGUARD_STORE": f"file://{folder}/store",
            "SPOTGUARD_EVERY": "off",
            "GLOO_SOCKET_IFNAME": "lo",
            "RES_OPTIONS": "timeout:1 attempts:1",  # c10d asks for the name of every host
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stdout.splitlines()]
    whole, parts = (
        {(how, rank): digest for which, how, rank, digest in said if which == word}
        for word in ("whole", "parts")
    )
    assert len(whole) == len(parts) == sum(int(each.partition(":")[2]) for each in played)
    return whole, parts


@pytest.mark.parametrize(
    "played",
    [
        ("stock:2", "laid-out:3"),
        pytest.param(("laid-out:4", "unused:3", "unused:4"), marks=pytest.mark.soak),
    ],
    ids=",".join,
)
def test_ranks_go_on_bit_for_bit(tmp_path: Path, played: tuple[str, ...]) -> None:
    """Two as they are; and more as docs/how-to/several-ranks.md says: a pass that is thrown away before the restore, or buckets that never
    change."""
    whole, parts = digests(tmp_path, *played)
    assert parts == whole


@pytest.mark.soak
@pytest.mark.parametrize("world", [3, 4])
def test_without_that_torch_itself_does_not_and_they_go_on_as_with_torch(tmp_path: Path, world: int) -> None:
    """Should the first fail one day, the page can be shorter."""
    whole, parts = digests(tmp_path, f"stock:{world}", f"torch:{world}")
    for each in (whole, parts):
        assert [each[f"stock:{world}", f"{r}"] for r in range(world)] == [
            each[f"torch:{world}", f"{r}"] for r in range(world)
        ]
    assert all(parts[each] != whole[each] for each in whole)
