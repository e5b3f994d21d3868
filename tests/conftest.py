"""What every test stands on: no way outward, nothing of the caller's settings, and children that see what we see."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import spotguard
from tests.caller import ASKED, servers_required, to_be_swept
from tests.flaky import Flaky
from tests.servers.program import find
from tests.tiers import PROGRAMS, Marking
from tests.times import Times

# Where nobody listens: port 9 (discard) on loopback refuses at once, so a test that forgets to name its own
# server fails there instead of talking to a real cloud, or to the metadata service of the machine it runs on.
NOWHERE = "127.0.0.1:9"
ENDPOINTS = {
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{NOWHERE}",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_ENDPOINT_URL": f"http://{NOWHERE}",
    "AWS_ENDPOINT_URL_S3": f"http://{NOWHERE}",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "CLOUDSDK_CONFIG": os.devnull,  # where gcloud keeps who has logged in
    "GCE_METADATA_HOST": NOWHERE,
    "GCE_METADATA_IP": NOWHERE,
    "NO_GCE_CHECK": "true",
    "STORAGE_EMULATOR_HOST": f"http://{NOWHERE}",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{NOWHERE}",
    "IMDS_ENDPOINT": f"http://{NOWHERE}",
    "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint=http://{NOWHERE}/none;SharedAccessSignature=sig=none",
}
#: The folder of a `sitecustomize` by which torch starts faster in every Python that a test starts.
CHILDREN = Path(__file__).with_name("children")

_session = pytest.MonkeyPatch()
_runtime_dir = pytest.StashKey[Path]()
_marking = Marking()
_tests = count()


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment once, for this process and for every child that a test starts."""
    gc.disable()  # until the tests are collected: two fifths of that were spent on looking for garbage among them
    if find_spec("hypothesis") is not None:
        from hypothesis import settings

        # An example that takes 200 ms on a busy machine is no finding: nothing here measures time. The fast tier asks the
        # same examples each time, so that a change is not refused for what it did not do; the soak looks for new ones.
        fast = "not soak" in (config.option.markexpr or "")
        settings.register_profile("suite", deadline=None, derandomize=fast)
        settings.load_profile("suite")
    config.pluginmanager.register(_marking)
    reports = not hasattr(config, "workerinput")
    if not reports:
        ASKED.update(config.workerinput["asked"])  # type: ignore[attr-defined]  # xdist's
    if reports and (flaky := ASKED["SPOTGUARD_FLAKY"]):
        config.pluginmanager.register(Flaky(Path(flaky)))
    if times := ASKED["SPOTGUARD_TIMES"]:
        config.pluginmanager.register(Times(Path(times), writes=reports))
    for name in to_be_swept(os.environ):
        _session.delenv(name)
    for name, value in ENDPOINTS.items():
        _session.setenv(name, value)
    # What one process of the suite has compiled, and rewritten for its asserts, hundreds of others need not.
    _session.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    _session.setattr(sys, "dont_write_bytecode", False)
    # torch's store asks who each peer is (getnameinfo); a resolver that does not answer would cost 5 s each time.
    _session.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    # Children import the spotguard that this process imported: the checkout's, or the installed wheel's.
    _session.setenv(
        "PYTHONPATH", os.pathsep.join([str(CHILDREN), str(Path(spotguard.__file__).parent.parent)])
    )
    # Not below pytest's own tmp_path: a Unix socket's path holds 107 bytes (unix(7), sun_path), and that is longer.
    config.stash[_runtime_dir] = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))  # made with mode 0700
    # Whoever is killed leaves its files here. `prove` links what lies beside a working directory, and pytest's are beside those.
    _session.setenv("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    _session.setattr(tempfile, "tempdir", str(config.stash[_runtime_dir]))
    _session.setenv("TMPDIR", str(config.stash[_runtime_dir]))
    _session.setenv("XDG_RUNTIME_DIR", str(config.stash[_runtime_dir]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell one of xdist's workers, whose environment is swept before it begins."""
    node.workerinput["asked"] = ASKED


def pytest_collection_finish() -> None:
    """Collect garbage again, but not among what was imported: a guard looks through the rest at its first boundaries."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Keep what earlier tests have left out of sight: a guard looks through it too, for 27 ms after a thousand tests."""
    if next(_tests) % 10 == 0:  # 2 ms
        gc.collect()
        gc.freeze()


#: What takes seconds to start, and serves all tests of a worker that ask for it: such tests go to one worker.
SHARED = ("gang", "hosts", "moto_server")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every worker its part of the long tests, and those first.

    xdist hands each worker one run of the list, and those that are done take from the others' ends: with a long
    test at an end, one worker alone was busy for the last three of twelve minutes.
    """
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if workers == 1:
        return
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    long: list[pytest.Item] = []
    short: list[pytest.Item] = []
    for item in items:
        if (shared := _shared(item)) is not None:
            parts[SHARED.index(shared) % workers].append(item)
        else:
            (long if item.get_closest_marker("wholepath") else short).append(item)
    taken = 0
    for worker, part in enumerate(parts):
        # Neighbours stay together: they share what their module has started.
        part += long[len(long) * worker // workers : len(long) * (worker + 1) // workers]
        size = len(items) * (worker + 1) // workers - len(items) * worker // workers
        room = max(0, size - len(part))
        part += short[taken : taken + room]
        taken += room
    items[:] = [item for part in parts for item in part] + short[taken:]


def _shared(item: pytest.Item) -> str | None:
    """Return which of `SHARED` a test asks for, as far as its fixtures and its parameters say."""
    if (
        name := next((name for name in SHARED if name in getattr(item, "fixturenames", ())), None)
    ) is not None:
        return name
    callspec: Any = getattr(item, "callspec", None)
    given = callspec.params.values() if callspec is not None else ()
    return "moto_server" if any(isinstance(value, str) and value == "s3" for value in given) else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the machine as it was."""
    gc.collect()  # what was left open in a cycle is found here, and pytest says so
    gc.freeze()  # seven more collections of all that was imported follow, at pytest's end and the interpreter's
    _session.undo()
    if (folder := config.stash.get(_runtime_dir, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def required(program: str) -> str:
    """The program's path, or a skip with the reason; in CI a failure instead."""
    _marking.check(program)
    if (path := find(program)) is not None:
        return path
    reason = f"{program} is not installed: `make servers` installs what the real servers need"
    if servers_required():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session", name=PROGRAMS)
def require_server() -> Callable[[str], str]:
    """`require_server("nginx")` gives the program's path. It puts a test into the slow tier."""
    return required


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """The same for `FAST_PROGRAMS`, which the fast tier starts too."""
    return required


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A level or a handler that a test leaves would show, or hide, lines in the tests behind it."""
    log = logging.getLogger("spotguard")
    before = log.level, log.propagate
    yield
    found = log.level, log.propagate
    log.setLevel(before[0])
    log.propagate = before[1]
    assert found == before, (
        "the test leaves the logger `spotguard` with another level, or without its parents"
    )


pytest_plugins = ["tests.fixtures_simulator", "tests.fixtures_servers"]
