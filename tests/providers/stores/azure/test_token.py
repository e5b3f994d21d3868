"""A token is there before it is needed, and refused once it is another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

pytest.importorskip("azure.identity")

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from spotguard.providers.errors import DeniedError
from spotguard.providers.stores.azure.store import AzureBlobStore
from spotguard.providers.stores.azure.token import SCOPE, HeldToken
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.url import locate
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fakes.certificate import Certificate
from tests.fakes.clock import ManualClock
from tests.providers.stores.azure.opened import CREATED, azure

HOUR = 3600.0


@dataclass
class Identity:
    """A credential of the SDK's kind: each token is another, and lasts an hour."""

    clock: ManualClock
    asked: list[dict[str, object]] = field(default_factory=list)
    away: bool = False
    #: An answer waits for it.
    free: threading.Event = field(default_factory=threading.Event)
    closed: int = 0

    def __post_init__(self) -> None:
        self.free.set()

    def close(self) -> None:
        self.closed += 1

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        assert scopes == (SCOPE,)
        assert self.free.wait(100)
        if self.away:
            raise ClientAuthenticationError("nobody answers")
        self.asked.append(options)
        return AccessToken(f"token {len(self.asked)}", int(self.clock.time() + HOUR))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def identity(clock: ManualClock) -> Identity:
    return Identity(clock)


@pytest.fixture
def held(identity: Identity, clock: ManualClock) -> HeldToken:
    return HeldToken(lambda: identity, clock)


def test_the_identity_is_asked_ahead_of_time_only(
    held: HeldToken, identity: Identity, clock: ManualClock
) -> None:
    """By `keep`, a quarter of an hour before the end; a request takes what is held, whatever is left of it."""
    held.keep()
    clock.advance(HOUR - 16 * 60)
    held.keep()
    assert len(identity.asked) == 1
    clock.advance(15 * 60)
    assert held.get_token(SCOPE).token == "token 1"
    held.keep()
    assert held.get_token(SCOPE).token == "token 2"
    assert len(identity.asked) == 2


def test_a_token_that_lives_is_kept_when_nobody_answers(
    held: HeldToken, identity: Identity, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata service may be gone at the notice; only the end of the token ends it."""
    held.keep()
    identity.away = True
    clock.advance(HOUR - 60)
    held.keep()
    assert held.get_token(SCOPE).token == "token 1"
    assert "ends in 60 s" in caplog.text
    assert "token 1" not in caplog.text
    clock.advance(61)
    with pytest.raises(ClientAuthenticationError):
        held.keep()
    with pytest.raises(ClientAuthenticationError):
        held.get_token(SCOPE)


def test_an_identity_that_is_gone_is_asked_once_a_minute(
    held: HeldToken, identity: Identity, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A dozen threads look after their connections every few seconds: none of them waits but one."""
    held.keep()
    identity.away = True
    clock.advance(HOUR - 600)
    for _ in range(12):
        held.keep()
    assert caplog.text.count("refreshing it failed") == 1
    clock.advance(60)
    identity.away = False
    held.keep()
    assert held.get_token(SCOPE).token == "token 2"


def test_a_new_token_that_is_refused_is_not_the_reason(
    held: HeldToken, identity: Identity, clock: ManualClock
) -> None:
    """An old one is renewed once for all threads that were refused; a new one is not renewed again."""
    held.keep()
    assert held.renew() is False
    clock.advance(31)
    assert held.renew() is True
    assert [held.renew() for _ in range(8)] == [False] * 8
    assert len(identity.asked) == 2


def test_an_identity_that_hangs_holds_nobody_up(
    held: HeldToken, identity: Identity, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """azure-identity tries a metadata service that is gone for minutes; requests go on with the token that lives."""
    held.keep()
    identity.free.clear()
    clock.advance(HOUR - 600)
    keeping = threading.Thread(target=held.keep, name="keeping")
    keeping.start()
    clock.wait_for_waiters(1)
    assert held.get_token(SCOPE).token == "token 1"
    clock.advance(6)
    keeping.join(100)
    assert not keeping.is_alive()
    assert "refreshing it failed (TimeoutError)" in caplog.text
    clock.advance(600)
    with held.within(0), pytest.raises(TimeoutError):
        held.get_token(SCOPE)
    identity.free.set()
    assert held.get_token(SCOPE).token == "token 2"
    assert len(identity.asked) == identity.closed == 2


def test_all_wait_for_one_question(held: HeldToken, identity: Identity, clock: ManualClock) -> None:
    identity.free.clear()
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(held.get_token(SCOPE).token), name=f"wanting-{number}")
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    clock.wait_for_waiters(8)
    identity.free.set()
    for thread in threads:
        thread.join(100)
    assert got == ["token 1"] * 8


def test_the_sdk_asks_for_every_request(held: HeldToken, clock: ManualClock) -> None:
    """It would keep a token otherwise that we renewed."""
    assert held.get_token(SCOPE, enable_cae=True).expires_on <= clock.time()


def test_the_tenant_of_a_challenge_is_passed_on(
    held: HeldToken, identity: Identity, clock: ManualClock
) -> None:
    held.keep()
    clock.advance(31)
    assert held.get_token(SCOPE, tenant_id="other").token == "token 2"
    assert identity.asked == [{}, {"tenant_id": "other"}]


def test_a_question_for_which_there_is_no_thread_is_asked_again(
    held: HeldToken, identity: Identity, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token that lives is kept meanwhile, and nobody waits for an answer to what was never asked."""
    held.keep()
    clock.advance(HOUR - 600)
    with monkeypatch.context() as patch:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        held.keep()
        assert held.get_token(SCOPE).token == "token 1"
        clock.advance(601)
        with pytest.raises(TimeoutError, match="no thread"):
            held.get_token(SCOPE)
    assert held.get_token(SCOPE).token == "token 2"


# --- with azure-identity, over TLS ---


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A managed identity's endpoint as App Service has it, and the tokens that it gave."""
    given: list[str] = []

    def answer(asked: Asked) -> Answer:
        given.append(f"token-{len(given) + 1}")
        words = {
            "access_token": given[-1],
            "expires_on": str(int(time.time() + HOUR)),
            "expires_in": str(int(HOUR)),
            "resource": asked.query["resource"],
            "token_type": "Bearer",
        }
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(words).encode())

    with AnsweringServer(answer) as server:
        monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        yield given


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, {"Content-Type": "text/html"}, b"<html>log in</html>"),
        Answer(200, {"Content-Type": "application/json"}, b"{}"),
        Answer(200, {"Content-Type": "application/json"}, b'["log in"]'),
        Answer(200, {"Content-Type": "application/json"}, b'{"access_token": "", "expires_in": "60"}'),
        Answer(200, {"Content-Type": "application/json"}, b'{"access_token": "x", "expires_on": "soon"}'),
        Answer(204),
        Answer(302, {"Location": "http://login.example/"}),
        Answer(401, {"Content-Type": "text/html"}, b"<html>log in</html>"),
        Answer(511, {"Content-Type": "text/html"}, b"<html>log in</html>"),
    ],
    ids=lambda answer: f"{answer.status} {answer.body.decode()[:30]}",
)
def test_an_answer_that_is_no_identity_s_is_no_token(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """One line for the store's user, and nothing is sent to the store."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    with (
        AnsweringServer(lambda asked: answer) as login,
        azure(lambda asked: CREATED, certificate.server) as server,
    ):
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{login.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        store = open_store(f"az://container?endpoint={server.url}&ca={certificate.ca}")
        attempts: list[Callable[[], None]] = [store.warm, lambda: store.put("a", memoryview(b"x"))]
        for attempt in attempts:
            with pytest.raises(
                DeniedError, match=r"could not get a token .*ManagedIdentityCredential: "
            ) as raised:
                attempt()
            assert "\n" not in str(raised.value)
            assert answer.headers.get("Location", "") in str(raised.value)
        assert server.asked == []


CHALLENGE = "Bearer authorization_uri=https://login.microsoftonline.com/1-2/oauth2/authorize resource_id=https://storage.azure.com"


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": CHALLENGE}], ids=["plain", "challenge"])
def test_a_token_that_is_refused_is_renewed_once(
    tokens: list[str], certificate: Certificate, challenge: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the request goes again; a second refusal is a denial."""
    clock = ManualClock(wall=time.time())
    accepted = {"Bearer token-2"}

    def answer(asked: Asked) -> Answer:
        if asked.headers["authorization"] in accepted:
            return CREATED
        return Answer(401, {"x-ms-error-code": "InvalidAuthenticationInfo", **challenge})

    with azure(answer, certificate.server) as server:
        store = AzureBlobStore(locate(f"az://container?endpoint={server.url}&ca={certificate.ca}"), clock)
        with pytest.raises(DeniedError):
            store.warm(timeout=100)
        server.asked.clear()
        clock.advance(60)
        store.put("a", memoryview(b"x"))
        assert tokens == ["token-1", "token-2"]
        assert len(server.asked) == 2
        accepted.clear()
        clock.advance(60)
        with pytest.raises(DeniedError, match="InvalidAuthenticationInfo") as raised:
            store.put("a", memoryview(b"x"))
        assert tokens == ["token-1", "token-2", "token-3"]
        assert len(server.asked) == 4
        assert "token-" not in str(raised.value)
        accepted.add("Bearer token-4")
        store.renew_credentials(timeout=5.0)
        assert tokens[-1] == "token-3", "it is new: the token is not the reason"
        clock.advance(60)
        store.renew_credentials(timeout=5.0)
        store.put("a", memoryview(b"x"))
        assert tokens[-1] == "token-4"


def test_a_refusal_stays_the_answer_while_no_other_token_can_be_had(
    held: HeldToken, identity: Identity, clock: ManualClock
) -> None:
    """The identity is away. Else a save without a deadline would ask for ever."""
    held.keep()
    clock.advance(60)
    identity.away = True
    assert held.renew() is False
    assert held.get_token(SCOPE).token == "token 1"


@pytest.mark.parametrize("where", ["app service", "machine"])
def test_an_identity_is_never_asked_by_a_proxy(
    tokens: list[str], certificate: Certificate, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain HTTP is a metadata service's: law 5."""
    if where == "machine":
        monkeypatch.setenv(
            "AZURE_POD_IDENTITY_AUTHORITY_HOST", os.environ["IDENTITY_ENDPOINT"].removesuffix("/msi/token")
        )
        monkeypatch.delenv("IDENTITY_ENDPOINT")
        monkeypatch.delenv("IDENTITY_HEADER")
    with (
        AnsweringServer(lambda asked: Answer(407)) as proxy,
        azure(lambda asked: CREATED, certificate.server) as server,
    ):
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, proxy.url)
        store = open_store(f"az://container?endpoint={server.url}&ca={certificate.ca}")
        store.put("a", memoryview(b"x"), timeout=100)
        assert proxy.asked == []
        assert server.asked[0].headers["authorization"] == f"Bearer {tokens[-1]}"


def test_a_failure_of_the_identity_is_one_line() -> None:
    """A program that configured no logging hears azure-identity's own paragraph otherwise."""
    program = (
        "from spotguard.providers.errors import DeniedError\n"
        "from spotguard.providers.stores.factory import open_store\n"
        "try: open_store('az://container?endpoint=https://127.0.0.1:9').warm(timeout=100)\n"
        "except DeniedError as error: print(error)\n"
    )
    environment = {**os.environ, "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    environment.pop("AZURE_STORAGE_CONNECTION_STRING", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stderr == ""
    assert "could not get a token" in done.stdout


def test_a_machine_without_an_identity_is_told(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent to the store, and the way out is said in one line."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    with AnsweringServer(lambda asked: Answer(500), certificate.server) as server:
        store = open_store(f"az://container?endpoint={server.url}&ca={certificate.ca}")
        with pytest.raises(DeniedError, match="could not get a token") as raised:
            store.warm(timeout=100)
        assert server.asked == []
    assert "\n" not in str(raised.value)


def test_it_says_how_long_it_lives(held: HeldToken, clock: ManualClock) -> None:
    """For `doctor`; nobody is asked."""
    assert held.left() is None
    held.keep()
    clock.advance(600)
    assert held.left() == pytest.approx(HOUR - 600, abs=1)
