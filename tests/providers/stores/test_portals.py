"""Servers in a store's place: nothing of what they answer is a stored object, a missing one, or a deletion."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    MisconfiguredError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from spotguard.providers.stores.base import BlobStore
from tests.cases import cases
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.portals import LOGIN, PORTALS
from tests.providers.stores.conftest import Opening

DATA = bytes(32)

VERBS: dict[str, Callable[[BlobStore], object]] = {
    "warm": lambda store: store.warm(timeout=100),
    "put": lambda store: store.put("run/a", memoryview(DATA), timeout=100),
    "put of no bytes": lambda store: store.put("run/a", memoryview(b""), timeout=100),
    "put_if_absent": lambda store: store.put_if_absent("run/a", memoryview(DATA), timeout=100),
    "get": lambda store: store.get("run/a", timeout=100),
    "read_into": lambda store: store.read_into("run/a", 0, memoryview(bytearray(7)), timeout=100),
    "read_into of no bytes": lambda store: store.read_into("run/a", 0, memoryview(bytearray(0)), timeout=100),
    "list": lambda store: list(store.list("run/", timeout=100)),
    "delete": lambda store: store.delete(["run/a", "run/b"], timeout=100),
}

STORES = ["s3", "google", "azure"]


def raised(store: BlobStore, verb: str) -> StoreError | None:
    try:
        VERBS[verb](store)
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("opening", STORES, indirect=True)
def test_an_answer_of_another_server_is_an_error(opening: Opening) -> None:
    """For every verb: one line that says so, after a few requests."""
    with AnsweringServer(lambda asked: PORTALS["200"]) as server:
        store = opening(server.url, None)
        for portal, verb in itertools.product(PORTALS, VERBS):
            server.answer = lambda asked, portal=portal: PORTALS[portal]  # type: ignore[misc]
            server.asked.clear()
            error = raised(store, verb)
            assert error is not None, (portal, verb)
            assert not isinstance(error, (NotFoundError, CorruptError, FullError)), (portal, verb)
            assert "[SG316]" in str(error), (portal, verb)
            assert "\n" not in str(error), (portal, verb)
            assert len(server.asked) <= 4, (portal, verb)


@pytest.mark.parametrize("opening", STORES, indirect=True)
@cases("status", [404, 409, 410, 412, 416])
def test_a_status_that_tells_of_an_object_is_an_outage(opening: Opening, status: int) -> None:
    """Only the service itself may tell that."""
    with AnsweringServer(lambda asked: Answer(status)) as server:
        assert type(raised(opening(server.url, None), "put")) is UnavailableError


@pytest.mark.parametrize("opening", STORES, indirect=True)
def test_a_redirect_is_named_and_not_followed(opening: Opening) -> None:
    """A permanent one is a setting; others may be over in a moment. The query of the place may hold a token."""
    transient = {"301": False, "302": True, "307": True, "308": False}
    with AnsweringServer(lambda asked: PORTALS["302"]) as server:
        store = opening(server.url, None)
        for portal, verb in itertools.product(transient, VERBS):
            server.answer = lambda asked, portal=portal: PORTALS[portal]  # type: ignore[misc]
            server.asked.clear()
            error = raised(store, verb)
            assert error is not None, (portal, verb)
            assert LOGIN in str(error), (portal, verb)
            assert "from=here" not in str(error), (portal, verb)
            assert error.transient is transient[portal], (portal, verb)
            assert isinstance(error, MisconfiguredError) is not transient[portal], (portal, verb)
            assert len(server.asked) == 1, (portal, verb)


@pytest.mark.parametrize("opening", STORES, indirect=True)
@cases("portal, kind", [("401", DeniedError), ("403", DeniedError), ("407", MisconfiguredError)])
def test_a_refusal_by_another_server_names_no_permission(
    opening: Opening, portal: str, kind: type[StoreError]
) -> None:
    """No permission of the store's is missing where the store has not answered."""
    with AnsweringServer(lambda asked: PORTALS[portal]) as server:
        error = raised(opening(server.url, None), "put")
    assert type(error) is kind
    assert "allow" not in str(error)
    assert "SG302" not in str(error)
