"""What stores do on a bad day, to whole saves: committed inside the window, or the last checkpoint intact and the reason said.

Each cloud's SDK speaks to a real server, through a network that does what a test tells it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch")

import torch

from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import NotFoundError
from tests.e2e.clouds import CLOUDS, Day, begin_day, puts, puts_large, puts_small
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice
from tests.fakes.training import PATIENCE, Job, different, guarded, restored, small, trajectory
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Asked, Fault
from tests.tiers import few_fast

pytestmark = pytest.mark.torch


def wide() -> Job:
    """Objects of some hundred kB, so that there is a middle to break in."""
    return small(width=4096)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bits are compared, and the number of threads is part of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CLOUDS)
def day(request: pytest.FixtureRequest, faults_before: FaultsBefore) -> Day:
    return begin_day(request.param, request, faults_before)


@contextmanager
def under_way(day: Day, clock: ManualClock | None = None) -> Iterator[tuple[Guard, Job, Heard]]:
    """A job that stands after two steps, the first of which is in the store."""
    job = wide()
    with guarded(day.store, job.values, clock=clock) as guard:
        assert guard.restore() == 0
        job.step(0)
        guard.step()
        guard.save()
        job.step(1)
        guard.step()
        yield guard, job, Heard(guard)


def is_restored(day: Day, step: int) -> None:
    """A new machine gets this step, bit for bit."""
    found, state = restored(day.behind, wide)
    assert found == step
    assert different(state, trajectory(wide, step)[step]) == []


def is_as_before(day: Day) -> None:
    """Of the save that failed there is no manifest and no marker; the one before is restored."""
    later = [key.rpartition("/")[2] for key in day.names() if "/checkpoints/000000002-" in key]
    assert [name for name in later if name.endswith(".json") and name != SAVING] == []
    is_restored(day, 1)


def outcome(day: Day) -> dict[str, Any]:
    (key,) = (key for key in day.names() if "/outcomes/" in key)
    said: dict[str, Any] = json.loads(day.behind.get(key))
    return said


def fails(guard: Guard, heard: Heard, seconds: float = 30) -> str:
    """A notice, and what the agent is told of the save."""
    guard._agent.hear(notice("n1", seconds))
    failed = heard.wait(protocol.Failed)
    assert (failed.id, failed.last_step) == ("n1", 1)
    assert heard.of(protocol.Committed) == []
    return str(failed.reason)


def fails_in_the_end(guard: Guard, heard: Heard, clock: ManualClock, seconds: float = 30) -> str:
    """A notice whose save goes on to its deadline, and what the agent is told of it."""
    guard._agent.hear(notice("n1", seconds))
    passes(clock, heard)
    failed = heard.wait(protocol.Failed)
    assert (failed.id, failed.last_step) == ("n1", 1)
    assert failed.reason.startswith("out of time; the last error of the store: ")
    assert heard.of(protocol.Committed) == []
    return str(failed.reason)


def commits(guard: Guard, heard: Heard, seconds: float = 30) -> None:
    guard._agent.hear(notice("n1", seconds))
    committed = heard.wait(protocol.Committed)
    assert (committed.id, committed.step) == ("n1", 2)
    assert heard.of(protocol.Failed) == []


def passes(clock: ManualClock, heard: Heard) -> None:
    """Time, up to what the agent is told in the end; slower than a request on loopback is fast."""
    while not heard.ends(0.01):
        clock.advance(0.1)


# --- what passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", few_fast(range(2)), ids="seed-{}".format)
@pytest.mark.parametrize("scheme", CLOUDS)
def test_every_fifth_request_is_refused(
    scheme: str, seed: int, request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """With 503, from the first to the last: registered, saved, saved at a notice, and restored."""
    day = begin_day(scheme, request, faults_before, seed)
    day.network.inject(replace(day.cloud.busy, share=0.2))
    with under_way(day) as (guard, _, heard):
        commits(guard, heard)
    found, state = restored(day.store, wide)
    assert found == 2
    assert different(state, trajectory(wide, 2)[2]) == []
    assert day.network.faults_met() >= 2, "hardly anything went wrong"


@pytest.mark.parametrize("after", few_fast([60_000, 0, 1_000]))
@pytest.mark.parametrize("where", ["request", "response"])
def test_connections_are_reset(day: Day, where: Literal["request", "response"], after: int) -> None:
    """In what is sent and in what is answered: first puts, then reads."""
    with under_way(day) as (guard, _, heard):
        day.network.inject(Fault("reset", where, after=after, times=2, matching=puts_large))
        commits(guard, heard)
        assert day.network.faults_met("reset") == 2
        day.network.inject(
            Fault("reset", where, after=after, times=3, matching=lambda asked: not puts(asked))
        )
    found, state = restored(day.store, wide)
    assert found == 2
    assert different(state, trajectory(wide, 2)[2]) == []
    assert day.network.faults_met("reset") == 5


@pytest.mark.parametrize("where", few_fast(["request", "response"]))
def test_a_stall_that_goes_on_costs_a_while(day: Day, where: Literal["request", "response"]) -> None:
    with under_way(day) as (guard, _, heard):
        day.network.inject(Fault("stall", where, after=0, times=2, matching=puts_large))
        guard._agent.hear(notice("n1", 60))
        assert day.network.wait_for_stalled(2)
        assert heard.of(protocol.Committed) == []
        day.network.go_on()
        assert heard.wait(protocol.Committed).step == 2
    is_restored(day, 2)


def test_a_stall_that_does_not_end_is_left(day: Day) -> None:
    """Another connection is tried while there is time."""
    with under_way(day) as (guard, _, heard):
        day.network.inject(Fault("stall", after=60_000, times=1, matching=puts_large))
        commits(guard, heard, seconds=20)
        assert day.network.faults_met("stall") == 1
    is_restored(day, 2)


def test_a_store_that_is_gone_for_15_s_is_waited_for(day: Day) -> None:
    clock = ManualClock()
    with under_way(day, clock) as (guard, _, heard):
        day.network.vanish()
        gone = clock.monotonic()
        guard._agent.hear(notice("n1", 60))
        while clock.monotonic() < gone + 15:
            assert clock.wait_for_waiters(2, PATIENCE), "nobody tries again"
            clock.advance(0.5)
        assert heard.of(protocol.Committed) == heard.of(protocol.Failed) == []
        day.network.come_back()
        passes(clock, heard)
        assert heard.wait(protocol.Committed).step == 2
    is_restored(day, 2)


def test_credentials_that_expire_in_the_save_are_renewed(
    request: pytest.FixtureRequest,
    faults_before: FaultsBefore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """S3 takes no old ones any more; the chain's file has had new ones for a moment."""
    file = tmp_path / "credentials"
    said = "[default]\naws_access_key_id = {0}\naws_secret_access_key = {0}\naws_session_token = {0}\n"
    file.write_text(said.format("old"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    day = begin_day("s3", request, faults_before)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def is_old(asked: Asked) -> bool:
        return "Credential=old/" in asked.headers.get("authorization", "")

    expired = replace(day.cloud.denied, matching=is_old)
    expired.body = expired.body.replace(b"AccessDenied", b"ExpiredToken")
    with under_way(day) as (guard, _, heard):
        file.write_text(said.format("new"))
        day.network.inject(expired)
        commits(guard, heard)
    assert day.network.faults_met() > 0
    assert not is_old(day.network.seen[-1])
    is_restored(day, 2)


def test_credentials_that_expire_and_have_no_heirs(
    request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """The save asks for them until its deadline, and ends with S3's own word."""
    day = begin_day("s3", request, faults_before)
    expired = replace(day.cloud.denied, matching=puts_large)
    expired.body = expired.body.replace(b"AccessDenied", b"ExpiredToken")
    clock = ManualClock()
    with under_way(day, clock) as (guard, _, heard):
        day.network.inject(expired)
        reason = fails_in_the_end(guard, heard, clock)
    assert "ExpiredToken (403)" in reason
    is_as_before(day)


@pytest.mark.parametrize("scheme", few_fast(CLOUDS))
def test_a_refusal_of_some_seconds_costs_some_seconds(
    scheme: str, request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """A permission comes back in the middle of the window."""
    day, clock = begin_day(scheme, request, faults_before), ManualClock()
    with under_way(day, clock) as (guard, _, heard):
        began = clock.monotonic()
        day.network.inject(replace(day.cloud.denied, matching=puts))
        guard._agent.hear(notice("n1", 30))
        while clock.monotonic() < began + 5:
            assert not heard.ends(0.01)
            clock.advance(0.1)
        day.network.heal()
        passes(clock, heard)
        committed = heard.wait(protocol.Committed)
        assert (committed.step, committed.level) == (2, "full")
    is_restored(day, 2)


# --- what does not -----------------------------------------------------------------------------------------------

REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    "denied": {
        "s3": ("AccessDenied (403)", "allow s3:PutObject"),
        "gs": ("said by the test", "the job's account needs storage.objects.create"),
        "az": ("AuthorizationPermissionMismatch (403)", "give this identity the role"),
    },
    "wrong_clock": {
        "s3": ("RequestTimeTooSkewed (403)", "this machine's clock is wrong: set it"),
        "az": ("AuthenticationFailed (403)", "this machine's clock is"),
    },
    "full": {
        "s3": ("QuotaExceeded (403)",),
        "gs": ("403 quotaExceeded",),
        "az": ("InsufficientStorage (507)",),
    },
}


@pytest.mark.parametrize(
    ("scheme", "why"), [(scheme, why) for why, said in REASONS.items() if why != "full" for scheme in said]
)
def test_a_refusal_to_the_end_is_reported_with_its_way_out(
    scheme: str, why: str, request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """The reason is the store's, with what to do.

    (To Google a wrong clock is a token that is refused, and an emulator has none: tests/providers/stores.)
    """
    day, clock = begin_day(scheme, request, faults_before), ManualClock()
    with under_way(day, clock) as (guard, _, heard):
        day.network.inject(replace(getattr(day.cloud, why), matching=puts_large))
        reason = fails_in_the_end(guard, heard, clock)
    assert all(part in reason for part in REASONS[why][scheme])
    is_as_before(day)


@pytest.mark.parametrize("scheme", REASONS["full"])
def test_an_error_that_waiting_does_not_mend_is_reported_at_once(
    scheme: str, request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """The clock stands still: no time of the window is spent on it. The reason is the store's, with what to do."""
    day = begin_day(scheme, request, faults_before)
    with under_way(day, ManualClock()) as (guard, _, heard):
        day.network.inject(replace(day.cloud.full, matching=puts_large))
        reason = fails(guard, heard)
    assert all(part in reason for part in REASONS["full"][scheme])
    said = outcome(day)
    assert (said["committed"], said["step"], said["reason"]) == (False, 1, reason)
    is_as_before(day)


def test_a_manifest_without_room_is_no_commit(day: Day) -> None:
    """All objects are there, and it is as if they were not."""
    with under_way(day, ManualClock()) as (guard, _, heard):
        before = sum(map(puts, day.network.seen))
        day.network.inject(replace(day.cloud.full, matching=puts_small, times=1))
        fails(guard, heard)
    assert sum(map(puts, day.network.seen)) - before == 4, "two objects, the manifest, the outcome"
    assert outcome(day)["committed"] is False
    is_as_before(day)


def test_a_store_that_is_gone_to_the_end(day: Day) -> None:
    """Nothing is committed, nothing arrives later, and the reason names what could not be reached."""
    clock = ManualClock()
    with under_way(day, clock) as (guard, _, heard):
        day.network.vanish()
        guard._agent.hear(notice("n1", 20))
        passes(clock, heard)
        failed = heard.wait(protocol.Failed)
        assert failed.reason.startswith("out of time; the last error of the store: put ")
        assert failed.last_step == 1
    day.network.come_back()
    assert [key for key in day.names() if "/outcomes/" in key] == []
    is_as_before(day)


def test_a_bucket_that_vanishes(day: Day) -> None:
    """With all that was in it. The save says what is not there, and so does whoever starts anew: it does not begin at 0."""
    with under_way(day, ManualClock()) as (guard, _, heard):
        day.remove()
        reason = fails(guard, heard)
        words = "there is no such container" if day.url.startswith("az") else "there is no such bucket"
        assert words in reason
    with pytest.raises(NotFoundError, match=words), guarded(day.store, wide().values):
        pass
