"""The simulated link takes the time that its rate says, and changes nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.demo.throttled_store import ThrottledStore
from spotguard.providers.errors import UnavailableError
from tests.fakes.clock import Impatient
from tests.fakes.store import FakeStore


def test_an_upload_takes_its_time_and_a_download_none() -> None:
    clock, store = Impatient(), FakeStore()
    link = ThrottledStore(store, 1000.0, clock)
    link.put("a", memoryview(bytes(5000)))
    assert clock.now == pytest.approx(5.0, abs=0.1)
    link.put_if_absent("b", memoryview(bytes(1000)))
    assert clock.now == pytest.approx(6.0, abs=0.1)
    assert link.get("a") == bytes(5000)
    assert [info.key for info in link.list("")] == ["a", "b"]
    link.delete(["b"])
    assert clock.now == pytest.approx(6.0, abs=0.1)
    assert link.url == store.url


def test_an_object_that_cannot_arrive_in_time_is_not_there() -> None:
    """The caller has his deadline back when it comes, and no object has appeared."""
    clock, store = Impatient(), FakeStore()
    with pytest.raises(UnavailableError, match=r"put a: out of time, 30.. of 5000 bytes not sent"):
        ThrottledStore(store, 1000.0, clock).put("a", memoryview(bytes(5000)), timeout=2.0)
    assert clock.now == pytest.approx(2.0)
    assert store.objects == {}


def test_a_script_behind_it_is_the_same_script(tmp_path: Path) -> None:
    """Its name, its arguments and its being the main program; its stores lie behind the link."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from spotguard.providers.stores.factory import open_store\n"
        f"print(__name__, sys.argv[1:], type(open_store({(tmp_path / 'store').as_uri()!r})).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "spotguard.demo.throttled_store", "4", str(script), "--steps", "3"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("__main__ ['--steps', '3'] ThrottledStore\n", "")
