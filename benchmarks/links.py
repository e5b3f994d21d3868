"""Emergency saves and restores through shaped links, to real servers of three clouds' stores, beside other ways to save.

One round is a save by each way, one after the other, of its own state of the same make; then our restore. All go to
one server, over one link whose payload rate was measured by plain TCP just before: "ideal" is bytes ÷ that rate. Ours
is timed from the hook being told of a notice to the commit; others around the call that returns when all is stored.
Processor time and memory are those of the saving process (`uploading` says how).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from . import link_rows, plots
from .contestants import OURS, RESTORE, Contestant, Restorer, contestants
from .link import Link
from .link_rows import RAW, UNSHAPED, Door, Sample
from .plain_tcp import WAYS, carry
from .rows import Row, Unable
from .scale import Scale
from .services import FAST, SERVICES, Service, check, serving
from .took import Took

#: MiB of state, and rounds, for each link.
_SLOW, _FAST = 264, 528
_ROUNDS = {100: 1, 400: 2, 800: 3, 2000: 3}
#: Seconds of plain TCP, once each way.
_SECONDS = 2.0


def measure(scale: Scale) -> Iterator[Row]:
    found: list[Sample] = []
    with Link() as link:
        for service in scale.of(SERVICES, SERVICES[:1]):
            try:
                check(service)
            except Unable as why:
                print(f"  {service.name} is left out: {why}", flush=True)
                continue
            here: list[Sample] = []
            try:
                here.extend(_measure(link, service, scale))
            except RuntimeError as why:  # what others took is not thrown away for it
                if scale.tiny:
                    raise
                print(f"  {service.name} FAILED: {why}", flush=True)
                continue
            found += here
            yield from link_rows.rows(service, here)
    if not found:
        raise Unable("no store can be measured here")
    if not scale.tiny:
        plots.draw(link_rows.keep(found), time.strftime("%Y-%m-%d"))


def _measure(link: Link, service: Service, scale: Scale) -> Iterator[Sample]:
    for mib, mbits in _groups(service, scale):
        yield from _group(link, service, scale, mib, mbits, tls=False)
    if service.cpu_tls is not None:
        yield from _group(link, service, scale, scale.of(_FAST, 2), service.mbits[-1:], tls=True)


def _groups(service: Service, scale: Scale) -> list[tuple[int, Sequence[int]]]:
    """The links that share a size of state, and so the processes that hold one."""
    if scale.tiny:
        return [(2, service.mbits[-1:])]
    if service.mbits[-1] == FAST[-1]:
        return [
            (_SLOW, [mbit for mbit in service.mbits if mbit not in FAST]),
            (_FAST, [mbit for mbit in service.mbits if mbit in FAST]),
        ]
    return [(_SLOW, service.mbits)]


def _group(
    link: Link, service: Service, scale: Scale, mib: int, mbits: Sequence[int], *, tls: bool
) -> Iterator[Sample]:
    # TLS is told of the SDK's own way beside ours, by which everybody signs and encrypts.
    ways = (OURS, *scale.of(service.peers[-1:] if tls else service.peers, ()), RESTORE)
    folder = Path(tempfile.mkdtemp(prefix=service.scheme, dir=scale.folder))
    link.shape(None)  # nobody waits for the link to get ready
    with ExitStack() as held:
        with link.on("store"):
            place = held.enter_context(serving(service, tls=tls))
        all_of_them = held.enter_context(contestants(ways, link, place, mib, folder))
        for mbit in mbits:
            yield from _rounds(link, service, mbit, all_of_them, scale, tls=tls)
        if mbits[-1] == service.mbits[-1] and not tls:
            link.shape(
                None
            )  # what the server takes: a link that is faster measures the server, for everybody
            yield Sample(service.name, "http", UNSHAPED, "save", OURS, all_of_them[OURS].save(), 0.0)


def _rounds(
    link: Link, service: Service, mbit: int, all_of_them: dict[str, Contestant], scale: Scale, *, tls: bool
) -> Iterator[Sample]:
    link.shape(mbit)
    pilot = scale.of(max(8, round(mbit / 8 * 1e6 * _SECONDS / 2**20)), 2)
    up, down = (_rate(carry(link, way, pilot, scale.folder)) for way in WAYS)
    door: Door = "https" if tls else "http"
    for _ in range(scale.of(_ROUNDS[mbit], 1)):
        saved = 0
        for way, each in all_of_them.items():
            if isinstance(each, Restorer):
                took = each.restore(saved)
                yield Sample(service.name, door, mbit, "restore", OURS, took, took.nbytes / down)
                continue
            took = each.save()
            yield Sample(service.name, door, mbit, "save", way, took, took.nbytes / up)
            if way == OURS:
                saved = each.checksum
        if mbit == service.mbits[-1]:
            raw = carry(link, "send", -(-took.nbytes // 2**20), scale.folder)
            yield Sample(service.name, door, mbit, "save", RAW, raw, raw.nbytes / up)


def _rate(took: Took) -> float:
    return took.nbytes / took.seconds
