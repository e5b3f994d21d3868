"""What the demo put into somebody's store goes with it, however the demo ends; what cannot be removed is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotguard.hooks.checkpoints.patience import PatientStore
from spotguard.providers.clock import Clock
from spotguard.providers.errors import NotFoundError, StoreError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.url import inside

#: Seconds for all of it: who pressed Ctrl-C because the store hangs does not wait for it much longer.
_PATIENCE = 20.0


@contextmanager
def cleared(store: BlobStore, run_id: str, clock: Clock, say: Callable[[str], None]) -> Iterator[None]:
    """Remove at the end all that the run has there. Nothing may write to it any more by then.

    Args:
        store: somebody's.
        run_id: a name that only this demo has.
        clock: by which the time for it runs out.
        say: told what stays. No error of the store takes the place of how the demo ended.
    """
    try:
        yield
    finally:
        place = inside(store.url, f"{run_id}/")
        stays = f"what the demo saved may stay in {place}: look there, and remove it by hand"
        try:
            _clear(PatientStore(store, clock, stays), run_id, clock)
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
        # Until nothing is found: a request whose machine was switched off may still have come in behind the listing.
        while keys := [info.key for info in store.list(f"{run_id}/", timeout=left())]:
            store.delete(keys, timeout=left())
    except NotFoundError:
        pass  # no bucket, so nothing of ours in it: the demo has ended with that
