"""Credentials for Cloud Storage: found by Google's own chain, renewed ahead, used as long as they hold, never shown."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.auth.exceptions import TransportError

from spotguard.providers.errors import DeniedError, MisconfiguredError, StoreError, UnavailableError
from spotguard.providers.stores.base import BlobStore, Identified
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.gcs.credentials import Token
from spotguard.providers.stores.gcs.store import GCSStore
from tests.fakes.clock import ManualClock
from tests.fakes.google import FakeGoogle, Say

REFUSED = Say.error(401, "authError")


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """With TLS, and a key file that names it."""
    with FakeGoogle(tmp_path, tls=True) as google:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google.key_file()))
        # Where nobody listens: tokens over plain HTTP are the metadata service's, and no proxy may see them.
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        yield google


@pytest.fixture
def store(google: FakeGoogle) -> BlobStore:
    return open_store(f"gs://bucket/run?endpoint={google.url}&ca={google.ca}")


def test_a_key_file_gives_one_token_to_all_threads(google: FakeGoogle, store: BlobStore) -> None:
    """Over TLS with a certificate that the URL names."""
    threads = [threading.Thread(target=store.warm, name=f"warming-{number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    store.put("a", memoryview(b"x"))
    assert google.tokens == 1
    assert [asked.headers["authorization"] for asked in google.asked] == ["Bearer token-1"] * 9


def test_a_certificate_that_nobody_named_is_refused(google: FakeGoogle) -> None:
    """Not worth another try, and nothing is sent."""
    with pytest.raises(MisconfiguredError, match="ca=FILE"):
        open_store(f"gs://bucket/run?endpoint={google.url}").put("a", memoryview(b"x"))
    assert google.asked == []


def test_a_token_that_is_refused_is_renewed_once(google: FakeGoogle, store: BlobStore) -> None:
    """The body goes a second time, all of it."""
    data = bytes(range(256)) * 8192
    google.says.append(REFUSED)
    store.put("a", memoryview(data))
    first, second = google.asked
    assert [first.headers["authorization"], second.headers["authorization"]] == [
        "Bearer token-1",
        "Bearer token-2",
    ]
    assert data in first.body
    assert first.body == second.body


def test_a_second_refusal_is_the_end(google: FakeGoogle, store: BlobStore) -> None:
    """Whoever is refused twice is not let in the third time."""
    google.says.extend([REFUSED] * 3)
    with pytest.raises(DeniedError, match="Google does not take"):
        store.put("a", memoryview(b"x"))
    assert len(google.asked) == google.tokens == 2


def test_a_refusal_stays_the_answer_while_no_other_token_can_be_had(
    google: FakeGoogle, store: BlobStore
) -> None:
    """The token service is away. Else a save without a deadline would ask for ever."""
    store.warm()
    google.says.extend([REFUSED] * 2)
    google.token_says.append(Say(status=0))
    with pytest.raises(DeniedError, match="Google does not take") as raised:
        store.put("a", memoryview(b"x"))
    assert raised.value.code == "authError"


def test_a_token_is_fetched_anew(google: FakeGoogle, store: BlobStore) -> None:
    """The store has refused it, but not as a token."""
    store.put("a", memoryview(b"x"))
    assert isinstance(store, GCSStore)
    store.renew_credentials(timeout=5.0)
    store.put("b", memoryview(b"x"))
    assert [asked.headers["authorization"] for asked in google.asked] == ["Bearer token-1", "Bearer token-2"]


@pytest.mark.parametrize(
    ("say", "leaf", "words"),
    [
        (
            Say(400, json.dumps({"error": "invalid_grant"}).encode()),
            DeniedError,
            "gives no token.*invalid_grant",
        ),
        (Say(status=0), UnavailableError, "no token can be had now"),
        (Say(200, b"<html>log in</html>"), UnavailableError, "none of a token service"),
        (Say(200, b'["log in"]'), UnavailableError, "none of a token service"),
        (Say(200, b'{"access_token": "", "expires_in": 3600}'), UnavailableError, "none of a token service"),
        (Say(200, b'{"access_token": {}, "expires_in": 3600}'), UnavailableError, "none of a token service"),
        (Say(200, b"{}"), DeniedError, "gives no token"),
        (Say(204, b""), DeniedError, "gives no token"),
        (Say(401, b"<html>log in</html>"), DeniedError, "gives no token.*log in"),
        (Say(511, b"<html>log in</html>"), DeniedError, "gives no token.*log in"),
        (
            Say(302, headers={"Location": "http://login.example/?x=1"}),
            UnavailableError,
            "http://login.example/,",
        ),
    ],
    ids=lambda value: f"{value.status} {value.body.decode()[:30]}" if isinstance(value, Say) else None,
)
def test_no_token_no_request(
    google: FakeGoogle, store: BlobStore, say: Say, leaf: type[StoreError], words: str
) -> None:
    """A key that is revoked is told from a service that does not answer, and from a login page in its place."""
    google.token_says.append(say)
    with pytest.raises(leaf, match=words):
        store.put("a", memoryview(b"x"))
    assert google.asked == []
    store.put("a", memoryview(b"x"))
    assert [asked.headers["authorization"] for asked in google.asked] == ["Bearer token-1"]


def test_nothing_to_be_found_is_said_with_the_way_out(
    google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, nothing of gcloud's, no machine of Google's."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    with pytest.raises(DeniedError, match="GOOGLE_APPLICATION_CREDENTIALS, or run gcloud"):
        open_store(f"gs://bucket/run?endpoint={google.url}").warm()


def test_a_machine_of_googles_has_an_account(
    google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata service gives the token, and no proxy is between. (google-auth reads where it is when it is imported.)"""
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, google.host)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    program = (
        "import sys; from spotguard.providers.stores.factory import open_store; store = open_store(sys.argv[1])\n"
        "store.warm(timeout=100); store.put('a', memoryview(b'x'), timeout=100)"
    )
    url = f"gs://bucket/run?endpoint={google.url}&ca={google.ca}"
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [asked.headers["authorization"] for asked in google.asked] == ["Bearer token-1"] * 2


def test_a_lost_metadata_service_is_one_line() -> None:
    """google-auth warns of each of its tries, and a program without logging set up would show them all."""
    program = (
        "import logging\n"
        "from spotguard.providers.errors import UnavailableError\n"
        "from spotguard.providers.stores.factory import open_store\n"
        "try: open_store('gs://bucket?endpoint=http://127.0.0.1:9').warm(timeout=100)\n"
        "except UnavailableError as error: print(error)\n"
        "logging.getLogger('google.auth.compute_engine._metadata').warning('attempt 1 of 5')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_no_secret_is_logged_or_said(
    google: FakeGoogle, store: BlobStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Also not at the level of debugging."""
    caplog.set_level(logging.DEBUG)
    google.says.extend([REFUSED, Say.error(403, "forbidden")])
    with pytest.raises(DeniedError) as caught:
        store.put("a", memoryview(b"x"))
    said = caplog.text + str(caught.value)
    assert "Bearer" not in said
    assert not any(f"token-{number}" in said for number in range(3))


def test_an_emulator_needs_no_scheme(
    google: FakeGoogle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And is told no credentials, though there are some."""
    with FakeGoogle(tmp_path) as emulator:
        monkeypatch.delenv("HTTP_PROXY")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url.removeprefix("http://"))
        open_store("gs://bucket/run").put("a", memoryview(b"x"))
        assert len(emulator.asked) == 1
        assert "authorization" not in emulator.asked[0].headers
    assert google.tokens == 0


class Source:
    """Credentials as google-auth has them, from a metadata service that may be away."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.token: str | None = None
        self.expiry: datetime | None = None
        self.lasts: float | None = 3600.0
        self.away = False
        self.refreshes = 0

    def refresh(self, request: object) -> None:
        self.refreshes += 1
        if self.away:
            raise TransportError("away")  # type: ignore[no-untyped-call, unused-ignore]
        self.token = f"token-{self.refreshes}"
        if self.lasts is not None:
            wall = datetime.fromtimestamp(self._clock.time(), UTC).replace(tzinfo=None)
            self.expiry = wall + timedelta(seconds=self.lasts)

    def apply(self, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {self.token}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(clock: ManualClock) -> Source:
    return Source(clock)


@pytest.fixture
def token(source: Source, clock: ManualClock) -> Token:
    return Token(source, clock)


def used(token: Token) -> str:
    """What a request would be sent with."""
    headers: dict[str, str] = {}
    token.before_request(None, "GET", "https://storage.googleapis.com", headers)
    return headers["authorization"]


def test_a_token_is_renewed_a_quarter_of_an_hour_ahead(
    token: Token, source: Source, clock: ManualClock
) -> None:
    """Not before, and by what warms, not by a request."""
    token.freshen(None)
    clock.advance(2699)
    token.freshen(None)
    assert source.refreshes == 1
    clock.advance(2)
    assert used(token) == "Bearer token-1"
    token.freshen(None)
    assert used(token) == "Bearer token-2"


def test_a_token_is_used_while_it_holds(
    token: Token, source: Source, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata service is gone: the save goes on, and nobody asks more than once a minute."""
    token.freshen(None)
    source.away = True
    clock.advance(3000)
    for _ in range(3):
        token.freshen(None)
    assert source.refreshes == 2
    assert "Google's token ends in 600 s" in caplog.text
    clock.advance(61)
    token.freshen(None)
    assert source.refreshes == 3
    clock.advance(520)
    assert used(token) == "Bearer token-1"
    assert source.refreshes == 3


def test_a_token_that_ended_is_no_token(token: Token, source: Source, clock: ManualClock) -> None:
    """Then there is an error, for whoever asks."""
    token.freshen(None)
    source.away = True
    clock.advance(3595)
    with pytest.raises(TransportError):
        used(token)
    with pytest.raises(TransportError):
        token.freshen(None)


def test_the_same_token_again_is_not_asked_for_all_the_time(
    token: Token, source: Source, clock: ManualClock
) -> None:
    """The metadata service gives it until five minutes before its end."""
    source.lasts = 600
    for _ in range(3):
        token.freshen(None)
    assert source.refreshes == 2
    clock.advance(61)
    token.freshen(None)
    assert source.refreshes == 3


def test_a_refusal_that_another_thread_answered_costs_no_second_token(token: Token, source: Source) -> None:
    """Twelve puts are refused at once, and one token is fetched."""
    used(token)

    def another() -> None:
        used(token)
        token.refresh(None)

    other = threading.Thread(target=another, name="other")
    other.start()
    other.join(100)
    token.refresh(None)
    assert source.refreshes == 2


def test_a_token_without_an_end_lasts(token: Token, source: Source) -> None:
    """Of a file that says none."""
    source.lasts = None
    token.freshen(None)
    token.freshen(None)
    assert token.left() == math.inf
    assert source.refreshes == 1


def test_a_store_says_as_whom_it_asks(store: BlobStore) -> None:
    """For `doctor`: a key file's token is renewed by whoever holds the key."""
    assert isinstance(store, Identified)
    store.warm()
    said = store.credentials()
    assert said is not None
    assert (said.kind, said.renewed) == ("a service account's key file", True)
    assert said.left is not None
    assert 0 < said.left <= 3600


def test_an_answer_that_google_auth_cannot_read_keeps_the_token_that_holds(
    token: Token, source: Source, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's metadata service, with a login page in its place, has no fields."""

    def refresh(request: object) -> None:
        source.token, source.expiry = None, None
        raise TypeError("string indices must be integers")

    token.freshen(None)
    clock.advance(3000)
    monkeypatch.setattr(source, "refresh", refresh)
    token.freshen(None)
    assert used(token) == "Bearer token-1"
    assert token.left() == 600
    clock.advance(595)
    with pytest.raises(TransportError, match="none of a token service"):
        used(token)


def test_a_lost_identity_is_told_once(
    token: Token, source: Source, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once a minute; and again if it was found in between."""
    for lost in (1, 2):
        source.away = False
        clock.advance(3600)
        token.freshen(None)
        source.away = True
        clock.advance(3000)
        for _ in range(3):
            token.freshen(None)
            clock.advance(61)
        assert caplog.text.count("refreshing it failed") == lost
