"""Emergency saves of jobs of several ranks, each behind a shaped link of its own, beside other ways to save; what each
rank writes; and how many collectives it takes.

"Ideal" is the most bytes that one rank holds ÷ the payload rate of its link, measured by plain TCP just before: of a
sharded state nobody can do with less. Ours is timed from the agents saying that their machines go to the last rank
knowing of the commit; others around the call that all ranks make. Bytes are those of the objects that the store then
holds. The ranks are processes of this machine, and the server is beside them: with many ranks and fast links that is
what is measured.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .contestants import OURS
from .link import Link
from .parties import Party, party
from .plain_tcp import carry
from .rows import Row, Unable
from .scale import Scale
from .services import SERVICES, Place, check, serving

_S3 = SERVICES[0]
_PEERS = ("DCP + s3torchconnector", "DCP + s3fs", "dcp.save + upload_file")
#: Rounds on each link, of Mbit/s.
_ROUNDS = {100: 1, 400: 3}
#: Blocks of 36 MiB, moments and all, for each rank: more than the 256 MiB from which the figure is one of the link.
_BLOCKS = 8
#: Seconds of plain TCP on each link.
_SECONDS = 1.0


@dataclass
class Found:
    """Of one way to save."""

    #: By Mbit/s: time ÷ ideal.
    ratios: dict[int, list[float]] = field(default_factory=dict)
    collectives: list[int] = field(default_factory=list)


def measure(scale: Scale) -> Iterator[Row]:
    check(_S3)
    worlds = scale.of((2, 4), (2,))
    with ExitStack() as held:
        links = [held.enter_context(Link())]
        while len(links) < max(worlds):
            links.append(held.enter_context(Link(links[-1])))
        with links[0].on("store"):
            place = held.enter_context(serving(_S3, tls=False))
        for world in worlds:
            found = dict(_ways(links[:world], place, scale))
            yield from _rows(world, found)
        yield from _layouts(links, place, scale)


# --- time, and collectives ---


def _ways(links: Sequence[Link], place: Place, scale: Scale) -> Iterator[tuple[str, Found]]:
    """The parties one after the other: more processes beside each other than cores are none the faster."""
    rates: dict[int, float] = {}
    for way in (OURS, *scale.of(_PEERS, _PEERS[-1:])):
        for link in links:
            link.shape(None)  # nobody waits for it to get ready
        folder = scale.folder / f"{len(links)}-{way.replace(' ', '-')}"
        try:
            with party(way, links, place, folder) as job:
                largest = max(job.train("FSDP2", scale.of(_BLOCKS * len(links), 1)))
                yield from _rounds(way, job, links, largest, rates, scale)
        except Unable as why:
            print(f"  {way} is left out: {why}", flush=True)
        _Objects(links[0], place, folder.name).delete()  # it lies in memory, and ten saves are gigabytes


def _rounds(
    way: str, job: Party, links: Sequence[Link], largest: int, rates: dict[int, float], scale: Scale
) -> Iterator[tuple[str, Found]]:
    world = len(links)
    # Who is noticed, of ours.
    ways: dict[str, Sequence[int]] = {way: ()}
    if way == OURS:
        ways = {f"{OURS}, all noticed": range(world), f"{OURS}, one noticed": [world - 1]}
    found = {name: Found() for name in ways}
    for noticed in ways.values():
        job.save(noticed)  # everybody's first connections
    for mbit in scale.of(tuple(_ROUNDS), (2000,)):
        for link in links:
            link.shape(mbit)
        if mbit not in rates:
            rates[mbit] = min(_rate(link, mbit, scale) for link in links)
        for _ in range(scale.of(_ROUNDS.get(mbit, 1), 1)):
            for name, noticed in ways.items():
                saved = job.save(noticed)
                found[name].ratios.setdefault(mbit, []).append(saved.seconds * rates[mbit] / largest)
                found[name].collectives.append(saved.collectives)
    yield from found.items()


def _rate(link: Link, mbit: int, scale: Scale) -> float:
    """Bytes a second from the saver to the store."""
    took = carry(link, "send", scale.of(max(8, round(mbit / 8 * 1e6 * _SECONDS / 2**20)), 2), scale.folder)
    return took.nbytes / took.seconds


def _rows(world: int, found: dict[str, Found]) -> Iterator[Row]:
    peers = [name for name in found if not name.startswith(OURS)]
    first = next(iter(found.values()))
    for mbit in first.ratios:
        what = f"FSDP2 on {world} ranks at {mbit} Mbit/s each, notice → committed ÷ ideal"
        best = min(peers, key=lambda name: statistics.median(found[name].ratios[mbit]), default="")
        peer = statistics.median(found[best].ratios[mbit]) if best else None
        for name, each in found.items():
            values = tuple(each.ratios[mbit])
            if name.startswith(OURS):
                yield Row(f"{what}: {name}", "×", values, _S3.figure, peer=peer, peer_name=best)
            else:
                yield Row(f"{what}: {name}", "×", values)
    for name, each in found.items():
        what = f"FSDP2 on {world} ranks, collectives of one save: {name}"
        yield Row(what, "of a rank", tuple(map(float, each.collectives)))


# --- who writes what ---


def _layouts(links: Sequence[Link], place: Place, scale: Scale) -> Iterator[Row]:
    for link in links:
        link.shape(None)  # bytes are the same on every link
    world = len(links)
    layouts = ["DDP", "FSDP2", "HSDP"] if world == 4 else ["DDP", "FSDP2"]
    folder = scale.folder / "layouts"
    with party(OURS, links, place, folder) as job:
        store = _Objects(links[0], place, folder.name)
        for layout in layouts:
            held = job.train(layout, scale.of(_BLOCKS, 1))
            state = sum(held) / {"DDP": world, "FSDP2": 1, "HSDP": 2}[layout]
            named = f"HSDP on 2 × {world // 2} ranks" if layout == "HSDP" else f"{layout} on {world} ranks"
            for noticed in (range(world), [world - 1]):
                step = job.save(noticed).step
                shares = store.of_ranks(layout, step, world)
                who = "all noticed" if len(noticed) > 1 else "one noticed"
                yield Row(f"{named}, {who}: bytes uploaded ÷ state", "×", (sum(shares) / state,))
                if len(noticed) > 1:
                    yield Row("  of that, each rank", "×", tuple(share / state for share in shares))
                else:
                    yield Row("  of that, the noticed machine's rank", "×", (shares[-1] / state,))
                    yield Row("  of that, each of the others", "×", tuple(s / state for s in shares[:-1]))


class _Objects:
    """What lies in the store, seen from its own machine."""

    def __init__(self, link: Link, place: Place, prefix: str) -> None:
        self._link = link
        self._prefix = prefix
        self._bucket = urlsplit(place.url).netloc
        environ = place.environ
        self._client: Any = importlib.import_module("boto3").client(
            "s3",
            endpoint_url=environ["AWS_ENDPOINT_URL_S3"],
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            region_name=environ["AWS_REGION"],
        )

    def delete(self) -> None:
        pages = self._client.get_paginator("list_objects_v2")
        with self._link.on("store"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}/"):
                for each in page.get("Contents", ()):
                    self._client.delete_object(Bucket=self._bucket, Key=each["Key"])

    def of_ranks(self, run: str, step: int, world: int) -> list[int]:
        """Bytes of each rank's objects of that step, those that were begun and given up with them; no manifests."""
        shares = [0] * world
        pages = self._client.get_paginator("list_objects_v2")
        with self._link.on("store"):
            prefix = f"{self._prefix}/{run}/checkpoints/{step:09}-"
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for each in page.get("Contents", ()):
                    path = Path(each["Key"])
                    if path.suffix == ".safetensors":
                        shares[int(path.parent.name.partition("-")[0])] += each["Size"]
        return shares
