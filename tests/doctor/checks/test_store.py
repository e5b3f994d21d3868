"""The doctor and the store: each right that is missing is a line with the cloud's own name for it, and nothing stays."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spotguard.doctor.checks import store as rights
from spotguard.doctor.checks.clock import Dates, judge
from spotguard.doctor.cleanup import Leftovers
from spotguard.doctor.finding import Finding
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError, StoreError, ThrottledError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.answering import AnsweringServer
from tests.fakes.clock import Hurried
from tests.fakes.nobody import nobody
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import WatchedStore
from tests.fixtures_servers import FaultsBefore
from tests.providers.stores.s3.asked import at, error_body, refusal
from tests.servers.azurite import Azurite
from tests.servers.faultplan import Asked
from tests.servers.faultplan import Fault as WireFault
from tests.servers.gcs import Gcs
from tests.servers.moto import Moto

CLOCK = SystemClock()

Which = Callable[[Asked], bool]


@dataclass(frozen=True)
class Cloud:
    """How a cloud's store is asked for each right, what it calls them, and how it says no."""

    needs: dict[str, Which]
    names: dict[str, str]
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


CLOUDS = {
    "moto": Cloud(
        {
            "put": lambda asked: asked.method == "PUT",
            "get": lambda asked: asked.method == "GET" and "list-type" not in asked.path,
            "list": lambda asked: asked.method == "GET" and "list-type" in asked.path,
            "delete": lambda asked: asked.method in ("POST", "DELETE"),
        },
        {"put": "s3:PutObject", "get": "s3:GetObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"},
        error_body("AccessDenied"),
    ),
    "gcs": Cloud(
        {
            "put": lambda asked: asked.path.startswith("/upload"),
            "get": lambda asked: asked.method == "GET" and "/o/" in asked.path,
            "list": lambda asked: asked.method == "GET" and "/o?" in asked.path,
            "delete": lambda asked: asked.path.startswith("/batch"),
        },
        {verb: f"storage.objects.{verb}" for verb in ("get", "list", "delete")}
        | {"put": "storage.objects.create"},
        b'{"error": {"code": 403, "message": "no", "errors": [{"reason": "forbidden"}]}}',
        {"Content-Type": "application/json"},
    ),
    "azurite": Cloud(
        {
            "put": lambda asked: asked.method == "PUT",
            "get": lambda asked: asked.method == "GET" and "comp=list" not in asked.path,
            "list": lambda asked: asked.method == "GET" and "comp=list" in asked.path,
            "delete": lambda asked: asked.method in ("POST", "DELETE"),
        },
        {"put": "blobs/write", "get": "blobs/read", "list": "blobs/read", "delete": "blobs/delete"},
        headers={"x-ms-error-code": "AuthorizationPermissionMismatch"},
    ),
}


def tried(store: BlobStore) -> dict[str, Finding]:
    with Leftovers(store, CLOCK) as litter:
        found = rights.rights(store, "run-7", litter, CLOCK)
    return {each.check: each for each in [*found.findings, *rights.remains(litter)]}


def reached(store: BlobStore) -> tuple[Finding, Dates]:
    dates = Dates(CLOCK)
    return rights.reach(store, CLOCK, lambda headers: dates.hear("the store", headers)), dates


def states(found: dict[str, Finding]) -> dict[str, str]:
    return {check: str(each.state) for check, each in found.items()}


ALL_OK = dict.fromkeys(("put", "create", "get", "list", "delete"), "ok")


def test_a_folder_allows_everything_and_nothing_stays(tmp_path: Path) -> None:
    """Not even the folders that the first put has made."""
    assert states(tried(open_store((tmp_path / "a" / "b").as_uri()))) == ALL_OK
    assert list(tmp_path.iterdir()) == []
    there = tmp_path / "there"
    there.mkdir()
    assert states(tried(open_store(there.as_uri()))) == ALL_OK
    assert list(tmp_path.iterdir()) == [there]


@pytest.fixture
def others() -> Iterator[Path]:
    """A folder of this user, to which everybody may go: pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o700)


def test_a_folder_of_somebody_else_fails_and_nothing_is_said_to_remain(others: Path) -> None:
    """What was refused was never put: there is nothing to delete by hand."""
    others.chmod(0)
    with nobody():
        found = tried(open_store((others / "store").as_uri()))
    assert states(found) == dict.fromkeys(("put", "get", "list", "delete"), "fails")
    assert "make the directory writable" in found["put"].advice


def test_an_object_that_may_have_been_put_is_reported_to_remain() -> None:
    """An answer that was lost tells nothing."""
    store = FakeStore()
    store.faults = [
        Fault(at, ("put", "delete"), error=lambda: UnavailableError("the answer was lost")) for at in range(9)
    ]
    found = tried(store)
    assert (found["put"].state, len(found["remains"].facts["left"])) == ("fails", 1)


def test_a_folder_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    assert "the first save makes it" in reached(open_store((tmp_path / "none").as_uri()))[0].found
    assert reached(open_store(tmp_path.as_uri()))[0].found == tmp_path.as_uri()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "/store"])
def test_a_file_is_no_store(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    url = (tmp_path / "file").as_uri() + below
    found, _ = reached(open_store(url))
    assert (found.state, found.found) == ("fails", f"{url}: Not a directory")
    assert "name a directory" in found.advice


@pytest.mark.parametrize("mode", [0o000, 0o300])
def test_a_folder_that_may_not_be_read_is_no_store(mode: int, others: Path) -> None:
    others.chmod(mode)
    with nobody():
        found, _ = reached(open_store(others.as_uri()))
    assert (found.state, found.found) == ("fails", f"{others.as_uri()}: Permission denied")
    assert "let this user read" in found.advice


def test_a_directory_that_cannot_be_made_fails_the_put() -> None:
    found = tried(open_store("file:///proc/spotguard-store"))
    assert states(found)["put"] == "fails"
    assert "remains" not in found
    if os.geteuid() == 0:  # who is not root is told of his rights
        assert found["put"].found.endswith("no directory can be made there, or it disappears at once")


def test_a_path_through_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    found = tried(open_store((tmp_path / "file" / "store").as_uri()))
    assert (found["put"].state, "name a directory" in found["put"].advice) == ("fails", True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("server", ["moto", "gcs", "azurite"])
def test_each_clouds_store_allows_everything_and_nothing_stays(
    server: str, request: pytest.FixtureRequest
) -> None:
    service: Moto | Gcs | Azurite = request.getfixturevalue(server)
    store = open_store(f"{service.fresh()}/prefix")
    assert reached(store)[0].state == "ok"
    found = tried(store)
    assert states(found) == ALL_OK
    assert all(each.facts["right"] for each in found.values())
    assert list(store.list("")) == []


@pytest.mark.parametrize("verb", ["put", "get", "list", "delete"])
@pytest.mark.parametrize("server", CLOUDS)
def test_a_right_that_is_refused_is_named(
    server: str, verb: str, request: pytest.FixtureRequest, faults_before: FaultsBefore
) -> None:
    """By itself: what the others allow is still said."""
    service: Moto | Gcs | Azurite = request.getfixturevalue(server)
    cloud, url = CLOUDS[server], f"{service.fresh()}/prefix"
    proxy = faults_before(service)
    refused = WireFault(
        "answer", status=403, body=cloud.body, headers=cloud.headers, matching=cloud.needs[verb]
    )
    proxy.inject(refused)
    found = tried(open_store(url))
    assert found[verb].state == "fails"
    assert f"allow {cloud.names[verb]}" in found[verb].advice
    others = {
        check: state for check, state in states(found).items() if check not in (verb, "create", "remains")
    }
    if verb == "get":  # what is not there may not be read, so that a save would hear "denied"
        assert others.pop("list") == "fails"
    assert set(others.values()) == {"ok"}, others
    proxy.heal()
    left = [info.key for info in open_store(url).list("")]
    if verb == "delete":
        assert found["remains"].facts["left"] == left, "what stays is said"
        assert "by hand" in found["remains"].advice
    else:
        assert left == []


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "get", "list", "delete"])
def test_a_store_that_fails_otherwise_fails_by_that_line(verb: str) -> None:
    store = FakeStore()
    store.faults = [Fault(0, (verb,), error=lambda: StoreError("it is broken; mend it"))]
    check = {"put_if_absent": "create"}.get(verb, verb)
    found = tried(store)
    assert (found[check].state, found[check].found, found[check].advice) == (
        "fails",
        "it is broken",
        "mend it",
    )


def test_a_store_that_creates_twice_is_a_warning() -> None:
    """As Swift's S3: two starts at the same moment may count themselves the same."""

    class Careless(FakeStore):
        def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
            self.put(key, data, timeout=timeout)
            return True

    found = tried(Careless())
    assert states(found) == {**ALL_OK, "create": "warning"}
    assert "start one at a time" in found["create"].advice


def test_a_store_that_does_not_list_what_was_put_fails() -> None:
    class Late(FakeStore):
        def list(self, prefix: str, *, timeout: float | None = None):  # type: ignore[no-untyped-def]
            return iter(())

    found = tried(Late())
    assert (found["list"].state, "consistent" in found["list"].advice) == ("fails", True)


def test_a_store_that_stands_still_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that hangs in it is left behind, and its key said."""
    monkeypatch.setattr(rights, "STEP", 0.2)
    monkeypatch.setattr("spotguard.doctor.cleanup._RETURNING", 0.1)
    store = WatchedStore()
    store.hold(lambda key: True)
    found = tried(store)
    assert list(found) == ["put"], "whatever it is asked next would take as long"
    assert (found["put"].state, found["put"].found) == ("fails", "no answer in 0.2 s")
    assert "firewall" in found["put"].advice
    store.let_go()


def test_a_store_that_only_says_slow_down_is_asked_again() -> None:
    store = FakeStore()
    store.faults = [Fault(at, error=lambda: ThrottledError("slow down")) for at in (0, 2)]
    assert states(tried(store)) == ALL_OK
    store.faults = [Fault(at, ("get",), error=lambda: ThrottledError("slow down")) for at in range(2, 9)]
    assert tried(store)["get"].state == "fails"


def test_the_time_of_a_put_leaves_out_the_pauses_before_it() -> None:
    """A save asks for its commit's time: a "slow down" would count eleven tenths of a second in it, twice."""
    clock = Hurried()

    class Slow(FakeStore):
        def put(self, key: str, data: memoryview, **named: Any) -> None:
            clock.now += 0.25
            super().put(key, data, **named)

    store = Slow()
    store.faults = [Fault(at, ("put",), error=lambda: ThrottledError("slow down")) for at in (0, 1)]
    with Leftovers(store, CLOCK) as litter:
        assert rights.rights(store, "run-7", litter, clock).put_seconds == 0.25
    assert [verb for verb, _ in store.calls].count("put") == 3


def test_a_mistake_of_an_sdks_is_a_line_too() -> None:
    class Mistaken(FakeStore):
        def warm(self, *, timeout: float | None = None) -> None:
            raise RecursionError("deep")

    found, _ = reached(Mistaken())
    assert (found.state, found.found) == ("fails", "fake:///store: RecursionError: deep")
    assert "report it" in found.advice
    store = FakeStore()
    store.faults = [Fault(0, ("list",), error=lambda: RecursionError("deep"))]
    assert (tried(store)["list"].state, store.objects) == ("fails", {})


# --- the first request ---


def test_a_closed_port_fails_the_store() -> None:
    found, _ = reached(open_store("s3://bucket/prefix?endpoint=http://127.0.0.1:9"))
    assert found.state == "fails"
    assert found.advice


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "there is no such bucket"),
        (403, "InvalidAccessKeyId", "network"),
        (403, "SignatureDoesNotMatch", "network"),
    ],
)
def test_an_error_of_s3_at_the_first_request_is_one_line(
    status: int, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with AnsweringServer(lambda asked: refusal(status, code)) as server:
        found, _ = reached(at(server))
    assert found.state == "fails"
    assert code in found.found
    assert words in found.advice


def test_an_s3_that_calls_the_clock_wrong_gives_the_clocks_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """RequestTimeTooSkewed comes from 15 minutes on, and with a date."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with AnsweringServer(lambda asked: refusal(403, "RequestTimeTooSkewed")) as server:
        server.date = CLOCK.time() - 3600
        found, dates = reached(at(server))
    assert found.state == "fails"
    assert "RequestTimeTooSkewed" in found.found
    skew = judge(dates, "s3", taken=False)
    assert skew.state == "fails"
    assert "ahead of the store's" in skew.found
    assert "timedatectl" in skew.advice


def test_the_stores_time_is_heard_of_every_answer(moto: Moto) -> None:
    _, dates = reached(open_store(f"{moto.fresh()}/prefix"))
    assert judge(dates, "s3", taken=True).state == "ok"
    assert judge(dates, "s3", taken=True).found == "within 5 s of the store's"


def test_credentials_that_are_not_there_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    found, _ = reached(open_store("s3://bucket/prefix?endpoint=http://127.0.0.1:9"))
    assert (found.state, "instance role" in found.advice) == ("fails", True)


def test_a_store_whose_first_answer_never_comes_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "STEP", 0.2)

    class Silent(FakeStore):
        def warm(self, *, timeout: float | None = None) -> None:
            CLOCK.wait(never, 30)

    never = threading.Event()
    found, _ = reached(Silent())
    never.set()
    assert (found.state, found.found) == ("fails", "fake:///store: no answer in 0.2 s")


def test_denied_and_unreachable_are_told_apart() -> None:
    """A right to be given, or a network to be looked at."""
    store = FakeStore("s3://bucket/prefix")
    store.faults = [Fault(0, ("get",), error=lambda: DeniedError("get it: AccessDenied (403)"))]
    assert tried(store)["get"].advice == "allow s3:GetObject"
    away = FakeStore("s3://bucket/prefix")
    away.faults = [Fault(at, ("get",), error=lambda: UnavailableError("get it: no route")) for at in range(3)]
    assert "network" in tried(away)["get"].advice
