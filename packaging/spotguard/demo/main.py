"""The demo from its arguments to its exit code."""

from __future__ import annotations

import argparse
import importlib.util
import math
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import NotFoundError, StoreError, UnavailableError, UsageError
from spotguard.providers.optional_deps import how_to_install
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.names import read_place
from spotguard.providers.stores.url import inside

from .clouds import CLOUDS
from .compare import Verdict, compare
from .report.summary import kept
from .scenario import SHORTEST, DemoPlan, Director, Scenario
from .screen import Screen, open_screen


def run(arguments: argparse.Namespace) -> int:
    """Play the demo, write the report, print the verdict, and return the exit code.

    Raises:
        UsageError: torch is missing, or a value cannot be used.
    """
    _check(arguments)
    clock = SystemClock()
    with _ended_in_order(), _workspace() as folder:
        left = arguments.folder.absolute()
        cloud = CLOUDS[arguments.cloud]
        window = cloud.window if arguments.window is None else arguments.window
        script, steps, link = arguments.script.absolute(), arguments.steps, arguments.link
        plan = DemoPlan(cloud, script, steps, window, link, folder, left, *_place(arguments.store, folder))
        guest = _guest(plan, clock) if arguments.store else nullcontext()
        with guest, open_screen(plan.steps, clock, plain=arguments.no_color) as screen:
            story = Director(plan, screen, clock).play()
            verdict = _verdict(story, screen)
        report = _leave_report(plan, story, verdict)
    _print_timeline(story)
    print(f"\nthe picture: {report}")
    print(kept(plan, story))
    print(verdict.line())
    # The cloud's own window must be enough for a save. A shorter --window shows what remains without one.
    return 0 if verdict.equal and (story.saved or plan.short) else 1


def _check(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"the demo trains with PyTorch, and there is none here: {how_to_install('torch')}")
    if arguments.steps < SHORTEST:
        raise UsageError(f"--steps {arguments.steps}: expected {SHORTEST} or more")
    if arguments.store is not None:
        read_place("--store", arguments.store)
    if arguments.window is not None and not 0 < arguments.window < math.inf:
        raise UsageError(f"--window {arguments.window:g}: expected seconds above 0")
    if not 0 <= arguments.link < math.inf:
        raise UsageError(f"--link {arguments.link:g}: expected Mbit/s from 0 on")
    try:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--folder {str(arguments.folder)!r}: expected a directory that can be made: {error.strerror}"
        ) from error


def _place(store: str | None, folder: Path) -> tuple[str, str]:
    """Return the store and the run id. In a user's store, the run id is random, so that no other run has it."""
    if store is None:
        return (folder / "store").as_uri(), "demo"
    return store, f"demo-{secrets.token_hex(4)}"


def _guest(plan: DemoPlan, clock: Clock) -> AbstractContextManager[None]:
    """Return a context that clears the demo's objects from the user's store, also if the demo fails or is ended."""
    return cleared(open_store(plan.store), plan.run_id, clock, lambda line: print(line, file=sys.stderr))


@contextmanager
def _workspace() -> Iterator[Path]:
    """Give a temporary directory with a short path, for Unix sockets: their paths have at most 107 bytes (unix(7), sun_path)."""
    folder = Path(tempfile.mkdtemp(prefix="spotguard-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """End the demo on SIGTERM or SIGHUP as on Ctrl-C: switch its machines off first."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verdict(story: Scenario, screen: Screen) -> Verdict:
    screen.say("both runs are over: comparing every bit")
    return compare(story.reference_final, story.final, story.reference, story.parts)


def _leave_report(plan: DemoPlan, story: Scenario, verdict: Verdict) -> Path:
    from .report import html as report

    return report.leave(plan, story, verdict)


def _print_timeline(story: Scenario) -> None:
    line = story.timeline
    print(f"\nthe notice, {line.window:g} s before the end of machine 1:")
    for mark in line.marks:
        print(f"  {mark.at:8.3f} s  {mark.what}")
    if line.slack is not None:
        print(f"  {line.slack:8.3f} s  were left")


# The demo removes its objects from a user's store, however it ends. It reports objects that it cannot remove.

#: Seconds for the whole removal: a user who pressed Ctrl-C because the store hangs should not wait much longer.
_PATIENCE = 20.0


@contextmanager
def cleared(store: BlobStore, run_id: str, clock: Clock, say: Callable[[str], None]) -> Iterator[None]:
    """Remove all objects of the run at the end. By then, no process may still write to the run.

    Args:
        store: the user's store.
        run_id: a name that only this demo has.
        clock: the clock for the removal's time limit.
        say: called with a line that names the place of objects that stay. An error of the store never replaces the demo's
            own result.
    """
    try:
        yield
    finally:
        place = inside(store.url, f"{run_id}/")
        stays = f"what the demo saved may stay in {place}: look there, and remove it by hand"
        try:
            _clear(RetryingStore(store, clock, stays), run_id, clock)
        except StoreError as error:
            say(f"{stays}; {error}")
        except KeyboardInterrupt:
            say(stays)
            raise


def _clear(store: BlobStore, run_id: str, clock: Clock) -> None:
    end = clock.monotonic() + _PATIENCE

    def left() -> float:
        if (seconds := end - clock.monotonic()) <= 0:
            raise UnavailableError(f"it could not be removed in {_PATIENCE:g} s")
        return seconds

    try:
        # List until nothing is left: a late request of a machine that was switched off may have arrived after a listing.
        while keys := [info.key for info in store.list(f"{run_id}/", timeout=left())]:
            store.delete(keys, timeout=left())
    except NotFoundError:
        pass  # no bucket, so it holds nothing of the demo, which has ended with that error
