"""Who we are to S3: credentials that are found, that end, and that nobody renews."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotguard.providers.errors import DeniedError, NotFoundError
from spotguard.providers.stores.base import BlobStore, Identified
from spotguard.providers.stores.s3.store import S3Store
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.providers.stores.s3.asked import DATA, STORED, VERBS, at, key_of, refusal

pytestmark = pytest.mark.usefixtures("somebody_to_aws")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the credentials file; the environment has none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def write(key: str) -> None:
        (tmp_path / "credentials").write_text(
            f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n"
        )

    return write


@pytest.mark.parametrize(
    "code", ["ExpiredToken", "InvalidAccessKeyId", "TokenRefreshRequired", "RequestExpired"]
)
def test_credentials_that_end_are_asked_for_once_more(code: str, shared: Callable[[str], None]) -> None:
    """In the middle of a save: the put succeeds with what is to be found now, and so does the next, at once."""
    shared("OLD")
    with AnsweringServer(lambda asked: STORED) as server:
        store = at(server)
        store.put("run/a", memoryview(DATA))
        server.answer = lambda asked: refusal(400, code) if key_of(asked) == "OLD" else STORED
        shared("NEW")
        store.put("run/b", memoryview(DATA))
        store.put("run/c", memoryview(DATA))
        assert [(key_of(asked), asked.path[-1]) for asked in server.asked] == [
            ("OLD", "a"),
            ("OLD", "b"),
            ("NEW", "b"),
            ("NEW", "c"),
        ]
        assert server.asked[2].body == DATA


def test_credentials_of_a_file_are_found_anew(shared: Callable[[str], None]) -> None:
    """The store has refused the old ones by a code that tells nothing of them."""
    shared("OLD")
    with AnsweringServer(lambda asked: STORED) as server:
        store = at(server)
        store.put("run/a", memoryview(DATA))
        shared("NEW")
        assert isinstance(store, S3Store)
        store.renew_credentials(timeout=5.0)
        store.put("run/b", memoryview(DATA))
        assert [key_of(asked) for asked in server.asked] == ["OLD", "NEW"]


def test_new_credentials_that_are_refused_too_are_the_end(shared: Callable[[str], None]) -> None:
    """Asked for once, not for ever."""
    shared("OLD")
    with AnsweringServer(lambda asked: refusal(400, "ExpiredToken")) as server:
        store = at(server)
        with pytest.raises(DeniedError, match="ExpiredToken"):
            store.put("run/a", memoryview(DATA))
        assert len(server.asked) == 1
        shared("NEW")
        with pytest.raises(DeniedError, match="ExpiredToken"):
            store.put("run/a", memoryview(DATA))
        assert [key_of(asked) for asked in server.asked] == ["OLD", "OLD", "NEW"]


def test_credentials_that_are_gone_leave_the_refusal(
    shared: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What S3 said is the error; that there are no others is a warning."""
    shared("OLD")
    with AnsweringServer(lambda asked: refusal(400, "ExpiredToken")) as server:
        store = at(server)
        with pytest.raises(DeniedError):
            store.put("run/a", memoryview(DATA))
        (tmp_path / "credentials").unlink()
        with pytest.raises(DeniedError, match="ExpiredToken"):
            store.put("run/a", memoryview(DATA))
    assert "AWS credentials are refused, and refreshing them failed" in caplog.text


def test_many_threads_ask_once(shared: Callable[[str], None]) -> None:
    """Eight puts are refused at the same moment; whoever comes second takes what the first found."""
    shared("OLD")
    met = threading.Barrier(8)

    def answer(asked: Asked) -> Answer:
        if key_of(asked) == "NEW":
            return STORED
        met.wait(100)
        return refusal(400, "ExpiredToken")

    with AnsweringServer(lambda asked: STORED) as server, ThreadPoolExecutor(8) as pool:
        store = at(server)
        store.put("run/first", memoryview(DATA))
        server.answer = answer
        shared("NEW")
        list(pool.map(lambda number: store.put(f"run/{number}", memoryview(DATA)), range(8)))
        assert sorted(key_of(asked) for asked in server.asked[1:]) == ["NEW"] * 8 + ["OLD"] * 8


def warmed(store: BlobStore) -> None:
    store.warm()


def test_without_credentials_the_message_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with AnsweringServer(lambda asked: STORED) as server:
        for verb in (*VERBS.values(), warmed):
            with pytest.raises(DeniedError, match=r"no AWS credentials found; give the machine"):
                verb(at(server))
        assert server.connections == []


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Credentials with an end, as a role has them: writes what the chain is told from now on."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    told, asked = tmp_path / "role.json", tmp_path / "asked"
    (tmp_path / "ask").write_text(f"#!/bin/sh\necho asked >> {asked}\nexec cat {told}\n")
    (tmp_path / "ask").chmod(0o755)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {tmp_path}/ask\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(key: str, seconds: float) -> None:
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
        told.write_text(
            f'{{"Version": 1, "AccessKeyId": "{key}", "SecretAccessKey": "s", "SessionToken": "t", '
            f'"Expiration": "{end.isoformat()}"}}'
        )

    return write


def asked_for(tmp_path: Path) -> int:
    return len((tmp_path / "asked").read_text().splitlines())


def test_credentials_are_renewed_ahead(role: Callable[[str, float], None], tmp_path: Path) -> None:
    """By who warms the store, a quarter of an hour before their end; a put asks nobody."""
    role("OLD", 14 * 60)
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        store.warm()
        server.answer = lambda asked: STORED
        role("NEW", 3600)
        before = asked_for(tmp_path)
        store.put("run/a", memoryview(DATA))
        assert asked_for(tmp_path) == before
        assert key_of(server.asked[-1]) == "OLD"
    # A minute later it is asked again; here, by a store that was not asked just now.
    role("OLD", 14 * 60)
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        with pytest.raises(NotFoundError):
            store.get("run/a")
        role("NEW", 3600)
        store.warm()
        assert [key_of(asked) for asked in server.asked] == ["OLD", "NEW"]
        before = asked_for(tmp_path)
        store.warm()
        assert asked_for(tmp_path) == before


def test_credentials_that_hold_are_used_while_nobody_gives_new_ones(
    role: Callable[[str, float], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Five minutes before their end the service that gives them is gone: a warning, once a minute, and every put goes."""
    role("ROLE", 5 * 60)
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        with pytest.raises(NotFoundError):
            store.get("run/a")
        (tmp_path / "role.json").unlink()
        for _ in range(3):
            store.warm()
        server.answer = lambda asked: STORED
        before = asked_for(tmp_path)
        store.put("run/a", memoryview(DATA))
        assert asked_for(tmp_path) == before
        assert key_of(server.asked[-1]) == "ROLE"
    said = [record.message for record in caplog.records if record.name == "spotguard"]
    assert len(said) == 1
    assert said[0].startswith("AWS credentials end soon, and refreshing them failed")


def test_credentials_that_have_ended_when_they_come_are_none(role: Callable[[str, float], None]) -> None:
    """Or the machine's clock is wrong, which looks the same."""
    role("OLD", -60)
    with (
        AnsweringServer(lambda asked: STORED) as server,
        pytest.raises(DeniedError, match=r"have expired .* clock"),
    ):
        at(server).put("run/a", memoryview(DATA))


def test_many_threads_are_told_once_that_nothing_is_to_be_had(
    role: Callable[[str, float], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight puts are refused at the same moment, and eight more."""
    role("OLD", 3600)
    met = threading.Barrier(8)

    def answer(asked: Asked) -> Answer:
        met.wait(100)
        return refusal(400, "ExpiredToken")

    with AnsweringServer(lambda asked: STORED) as server, ThreadPoolExecutor(8) as pool:
        store = at(server)
        store.put("run/first", memoryview(DATA))
        (tmp_path / "role.json").unlink()
        server.answer = answer

        def put(number: int) -> None:
            with pytest.raises(DeniedError, match="ExpiredToken"):
                store.put(f"run/{number}", memoryview(DATA))

        list(pool.map(put, range(16)))
    said = [record.message for record in caplog.records if record.name == "spotguard"]
    assert len(said) == 1
    assert said[0].startswith("AWS credentials are refused, and refreshing them failed")


def test_a_role_says_when_it_ends_and_that_it_is_renewed(role: Callable[[str, float], None]) -> None:
    """For `doctor`."""
    role("KEY", 2 * 3600)
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        assert isinstance(store, Identified)
        store.warm()
        said = store.credentials()
    assert said is not None
    assert (said.kind, said.renewed, said.temporary) == ("a program that the profile names", True, False)
    assert said.left == pytest.approx(2 * 3600, abs=120)
