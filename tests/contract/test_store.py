"""What every blob store does. A new store joins by one line in STORES or SERVERS, and passes all of this."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotguard.demo.throttled_store import ThrottledStore
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CorruptError, NotFoundError, UnavailableError, UsageError
from spotguard.providers.stores.base import BlobStore, ObjectInfo
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.file import FileStore
from tests.cases import cases
from tests.fakes.called import CalledStore
from tests.fakes.store import FakeStore
from tests.tiers import examples

STORES: dict[str, Callable[[Path], BlobStore]] = {
    "fake": lambda folder: FakeStore(),
    "file": lambda folder: FileStore(folder / "store"),
    "uplink": lambda folder: ThrottledStore(FakeStore(), 1e12),
    "called": lambda folder: CalledStore(FakeStore()),
    "patient": lambda folder: RetryingStore(FakeStore(), SystemClock(), "Nothing was begun"),
}


#: Through the cloud's own SDK, to a real server: the fixture that starts it.
SERVERS = {"s3": "moto", "gs": "gcs", "az": "azurite"}

Opener = Callable[[], BlobStore]


@pytest.fixture(params=[*STORES, *SERVERS])
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    """Each call opens a store that nobody wrote to."""
    if (make := STORES.get(request.param)) is not None:
        return lambda: make(tmp_path_factory.mktemp("store"))
    server = request.getfixturevalue(SERVERS[request.param])
    return lambda: open_store(f"{server.fresh()}/some/prefix")


@pytest.fixture
def store(opener: Opener) -> BlobStore:
    return opener()


class Enough(Exception):
    """Whoever waits for a put has had enough."""


def keys(store: BlobStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_a_store_says_where_it_is_and_how_much_at_once(store: BlobStore) -> None:
    """A writer has no more threads than that."""
    assert "://" in store.url
    assert store.parallel >= 1


def test_bytes_come_back_as_they_were_put(store: BlobStore) -> None:
    """Bytes come back as they went in, and the listing knows their number."""
    store.put("run/a.bin", memoryview(b"hello"))
    assert store.get("run/a.bin") == b"hello"
    assert list(store.list("")) == [ObjectInfo("run/a.bin", 5, 0.0)]


def test_the_listing_has_the_date_of_each_object(store: BlobStore) -> None:
    """By the store's own clock, in Unix seconds: a later put is not earlier. Some stores count whole seconds."""
    store.put("run/1", memoryview(b"first"))
    store.put("run/2", memoryview(b"second"))
    first, second = (info.modified for info in store.list("run/"))
    assert first <= second <= first + 60
    assert abs(first - time.time()) < 60


def test_it_says_how_many_requests_make_sense(store: BlobStore) -> None:
    """By which a save chooses its threads."""
    assert store.parallel >= 1


def test_an_empty_object_is_an_object(store: BlobStore) -> None:
    """No bytes, but a name: it is listed, got, and read from."""
    store.put("run/empty", memoryview(b""))
    assert store.get("run/empty") == b""
    assert list(store.list("run")) == [ObjectInfo("run/empty", 0, 0.0)]
    store.read_into("run/empty", 0, memoryview(bytearray()))


def test_a_large_object_survives(store: BlobStore) -> None:
    """More than one piece of whatever a store cuts objects into."""
    data = bytes(range(256)) * (40 * 2**20 // 256) + b"end"
    store.put("run/large", memoryview(data))
    assert store.get("run/large") == data
    buffer = bytearray(7)
    store.read_into("run/large", len(data) - 7, memoryview(buffer))
    assert bytes(buffer) == data[-7:]


def test_buffers_of_any_kind_are_taken(store: BlobStore) -> None:
    """A writer hands over slices of its ring, whatever their format."""
    ring = bytearray(b"0123456789")
    store.put("run/slice", memoryview(ring)[2:5])
    store.put("run/words", memoryview(ring)[:8].cast("I"))
    assert store.get("run/slice") == b"234"
    assert store.get("run/words") == b"01234567"


def test_put_keeps_nothing_of_the_buffer(store: BlobStore) -> None:
    """When put returns, the buffer is the caller's again."""
    ring = bytearray(b"first")
    store.put("run/a", memoryview(ring))
    ring[:] = b"other"
    assert store.get("run/a") == b"first"


def test_a_put_tells_how_far_it_is(store: BlobStore) -> None:
    """Every byte is told once where nothing is sent again; what the caller raises ends the put, and nothing is there."""
    data = memoryview(bytes(range(256)) * (5 * 2**20 // 256))
    told: list[int] = []
    store.put("run/a", data, crc32=zlib.crc32(data), sent=told.append)
    assert sum(told) == len(data)
    assert store.get("run/a") == data

    for error in (Enough(), KeyboardInterrupt()):

        def enough(count: int, error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            store.put("run/b", data, sent=enough)
        assert raised.value is error
        assert keys(store) == ["run/a"]


def test_a_warm_store_is_as_it_was(store: BlobStore) -> None:
    """Before anything is there, again and again, from any thread."""
    store.warm(timeout=100)
    store.warm()
    thread = threading.Thread(target=store.warm, name="warming")
    thread.start()
    thread.join(100)
    assert not thread.is_alive()
    assert keys(store) == []


def test_put_again_changes_nothing(store: BlobStore) -> None:
    """A retried put needs no care."""
    for _ in range(3):
        store.put("run/a", memoryview(b"same"))
    assert store.get("run/a") == b"same"
    assert keys(store) == ["run/a"]


def test_put_if_absent_takes_the_first(store: BlobStore) -> None:
    """The second gets False, and the first one's bytes stay."""
    assert store.put_if_absent("run/a", memoryview(b"first")) is True
    assert store.put_if_absent("run/a", memoryview(b"second")) is False
    assert store.get("run/a") == b"first"


def test_put_if_absent_respects_put(store: BlobStore) -> None:
    """Absent means absent, however it came there; and deleted is absent again."""
    store.put("run/a", memoryview(b"first"))
    assert store.put_if_absent("run/a", memoryview(b"second")) is False
    store.delete(["run/a"])
    assert store.put_if_absent("run/a", memoryview(b"third")) is True
    assert store.get("run/a") == b"third"


def test_one_of_many_rivals_wins_a_conditional_create(store: BlobStore) -> None:
    """Sixteen threads claim each of ten numbers: each has one winner, and its bytes."""
    for number in range(10):
        barrier = threading.Barrier(16)
        wins: list[int] = []

        def claim(rival: int, number: int, barrier: threading.Barrier, wins: list[int]) -> None:
            barrier.wait(100)
            if store.put_if_absent(f"run/{number}", memoryview(b"%d" % rival)):
                wins.append(rival)

        threads = [
            threading.Thread(target=claim, args=(rival, number, barrier, wins), name=f"rival-{rival}")
            for rival in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert len(wins) == 1
        assert store.get(f"run/{number}") == b"%d" % wins[0]
    assert len(keys(store)) == 10


def test_threads_share_a_store(store: BlobStore) -> None:
    """Every method is safe from several threads at once."""
    failures: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            for number in range(20):
                key, data = f"run/{mine}/{number}", b"%d-%d" % (mine, number)
                store.put(key, memoryview(data))
                assert store.get(key) == data
                assert keys(store, f"run/{mine}/")
                if number % 2:
                    store.delete([key])
        except BaseException as error:  # noqa: BLE001 - the test's own thread asserts that there was none
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mine,), name=f"worker-{mine}") for mine in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures
    assert len(keys(store)) == 80


def test_a_missing_object_is_not_found(store: BlobStore) -> None:
    """A missing object is one error, whoever asks; a folder is no object."""
    store.put("run/a/b", memoryview(b"x"))
    for key in ("run/none", "run/a", "run/a/b/c", "none/at/all"):
        with pytest.raises(NotFoundError):
            store.get(key)
        with pytest.raises(NotFoundError):
            store.read_into(key, 0, memoryview(bytearray(1)))


@cases("start, size", [(0, 6), (3, 3), (5, 1), (9, 1)])
def test_too_few_bytes_are_corruption(store: BlobStore, start: int, size: int) -> None:
    """A truncated object never looks like a short read that went well."""
    store.put("run/a", memoryview(b"12345"))
    with pytest.raises(CorruptError):
        store.read_into("run/a", start, memoryview(bytearray(size)))


def test_a_range_is_read(store: BlobStore) -> None:
    """Only the buffer's bytes change."""
    store.put("run/a", memoryview(b"0123456789"))
    buffer = bytearray(b"......")
    store.read_into("run/a", 4, memoryview(buffer)[1:4])
    assert bytes(buffer) == b".456.."


def test_a_listing_is_in_order_of_keys(store: BlobStore) -> None:
    """Over folders too: "-" comes before "/", and a folder is no reason for another order."""
    names = ["run/b", "run/a/z", "run/a-b/x", "run/a0", "run2/a", "run/a1/y"]
    for name in names:
        store.put(name, memoryview(name.encode()))
    assert keys(store) == sorted(names)
    assert [info.size for info in store.list("")] == [len(name) for name in sorted(names)]


@cases(
    "prefix, found",
    [
        ("", ["run-2/a", "run/a", "run/ab/c", "run/b"]),
        ("run", ["run-2/a", "run/a", "run/ab/c", "run/b"]),
        ("run/", ["run/a", "run/ab/c", "run/b"]),
        ("run/a", ["run/a", "run/ab/c"]),
        ("run/ab/", ["run/ab/c"]),
        ("run/ab/c", ["run/ab/c"]),
        ("run/ab/cd", []),
        ("other/", []),
    ],
)
def test_a_prefix_is_a_prefix_of_text(store: BlobStore, prefix: str, found: list[str]) -> None:
    """Not of folders: "run/a" lists "run/ab/c" as well."""
    for key in ("run/a", "run/ab/c", "run/b", "run-2/a"):
        store.put(key, memoryview(b"x"))
    assert keys(store, prefix) == found


def test_a_store_that_was_never_written_to_is_empty(store: BlobStore) -> None:
    """The first run of a job looks for checkpoints before there is anything."""
    assert keys(store) == []
    store.delete(["run/none"])


def test_delete_removes_what_it_is_told(store: BlobStore) -> None:
    """No more, and a key that is not there is no error."""
    for key in ("run/a", "run/b/c", "run/b/d"):
        store.put(key, memoryview(b"x"))
    store.delete(["run/b/c", "run/none", "run/b", "run/a"])
    assert keys(store) == ["run/b/d"]
    store.delete(iter(["run/b/d"]))
    assert keys(store) == []


def test_a_deleted_place_can_be_written_again(store: BlobStore) -> None:
    """Nothing of what was there is in the way, be it folder or object."""
    store.put("run/a/b", memoryview(b"1"))
    store.delete(["run/a/b"])
    store.put("run/a", memoryview(b"2"))
    assert store.get("run/a") == b"2"


BAD_KEYS = ["", "/", "/etc/passwd", "a//b", "a/", "../a", "a/../../b", "a/./b", ".hidden", "a/.b", "a\0b", "a b", "ä", "a\\b",
            "a\n", "x" * 300, "/".join(["x" * 100] * 10)]  # fmt: skip


@cases("key", BAD_KEYS)
def test_an_invalid_key_is_refused(store: BlobStore, key: str) -> None:
    """By every verb, before anything is touched: no name leads out of a store."""
    data = memoryview(b"x")
    for attempt in (
        lambda: store.put(key, data),
        lambda: store.put_if_absent(key, data),
        lambda: store.get(key),
        lambda: store.read_into(key, 0, memoryview(bytearray(1))),
        lambda: store.delete([key]),
    ):
        with pytest.raises(UsageError):
            attempt()
    assert keys(store) == []


@cases("prefix", ["../", "a/../b", "/", "./"])
def test_a_prefix_leads_nowhere_else(store: BlobStore, prefix: str) -> None:
    """A listing stays in the store."""
    with pytest.raises(UsageError):
        list(store.list(prefix))


def test_no_time_left_is_said_at_once(store: BlobStore) -> None:
    """A put without time leaves no object behind."""
    with pytest.raises(UnavailableError):
        store.put("run/a", memoryview(b"x"), timeout=0.0)
    assert keys(store) == []


segment = st.text("ab0-._=", min_size=1, max_size=3).filter(lambda text: not text.startswith("."))
key = st.lists(segment, min_size=1, max_size=3).map("/".join)


@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_store_is_a_dict_of_bytes(opener: Opener, data: st.DataObject) -> None:
    """Any sequence of calls agrees with the plainest model there is (which has no folders)."""
    store = opener()
    model: dict[str, bytes] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(key)
        # A file system cannot hold both "a" and "a/b". Nor does any layout of ours.
        if any(at.startswith(f"{other}/") or other.startswith(f"{at}/") for other in model):
            continue
        verb = data.draw(st.sampled_from(["put", "put_if_absent", "delete", "get"]))
        value = data.draw(st.binary(max_size=20))
        if verb == "put":
            store.put(at, memoryview(value))
            model[at] = value
        elif verb == "put_if_absent":
            assert store.put_if_absent(at, memoryview(value)) is (at not in model)
            model.setdefault(at, value)
        elif verb == "delete":
            store.delete([at])
            model.pop(at, None)
        elif at in model:
            assert store.get(at) == model[at]
    prefix = data.draw(st.sampled_from(["", "a", "b/", "a/"]))
    expected = [ObjectInfo(at, len(model[at]), 0.0) for at in sorted(model) if at.startswith(prefix)]
    assert list(store.list(prefix)) == expected
