"""The stores that are measured, each by the real server that stands for it here, and who else can save to it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from spotguard.providers.stores.url import CLOUDS
from tests.servers.nginx import Nginx
from tests.servers.program import Server, find

from .rows import Unable

#: Mbit/s: a small machine's, and what one CPU's worth of Python can still be asked for.
SLOW, FAST = (100, 400), (800, 2000)


@dataclass(frozen=True, slots=True)
class Service:
    """A line of the table below."""

    name: str
    scheme: str
    #: Its server: a class of `tests.servers`, made from the paths of its programs.
    server: str
    programs: tuple[str, ...]
    peers: tuple[str, ...]
    #: The figures of DESIGN 10: time ÷ ideal of a save, processor seconds a GB.
    figure: float
    cpu: float
    mbits: tuple[int, ...] = SLOW + FAST
    #: Of the last of these links, the one on which processor time is told; and whether TLS is told beside it.
    cpu_tls: float | None = None


SERVICES = (
    Service(
        "S3",
        "s3",
        "swift.Swift",
        ("swift-proxy-server", "memcached"),
        ("DCP + s3torchconnector", "DCP + s3fs", "torch.save + upload_file"),
        figure=1.03,
        cpu=0.5,
        cpu_tls=1.0,
    ),
    Service(
        "Azure",
        "az",
        "azurite.Azurite",
        ("azurite-blob",),
        ("torch.save + upload_blob",),
        figure=1.05,
        cpu=1.0,
        mbits=(*SLOW, 800),
    ),
    Service(
        "GCS",
        "gs",
        "gcs.Gcs",
        ("gcp-storage-emulator",),
        ("torch.save + resumable upload",),
        figure=1.05,
        cpu=1.0,
        mbits=(*SLOW, 800),
    ),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere in a running server to save to."""

    url: str
    environ: dict[str, str]


def check(service: Service) -> None:
    """See that it can be measured here, before anything is started.

    Raises:
        Unable: it says what is missing.
    """
    try:
        importlib.import_module(CLOUDS[service.scheme].module, "spotguard.providers.stores")
    except ImportError as error:
        raise Unable(f"its store cannot be used here: {error}") from error
    for program in (*service.programs, "nginx", "openssl"):
        _find(program)


@contextmanager
def serving(service: Service, *, tls: bool) -> Iterator[Place]:
    """Its server, on the machine that this thread is on, and an empty place in it."""
    module, _, name = service.server.partition(".")
    cls: Callable[..., Server] = getattr(importlib.import_module(f"tests.servers.{module}"), name)
    with ExitStack() as held:
        server = held.enter_context(cls(*map(_find, service.programs)))
        environ = dict(server.environ)
        if service.scheme == "gs":
            environ["EMULATOR"] = f"http://127.0.0.1:{vars(server)['_port']}"  # without the suite's proxy
        if tls:
            front = held.enter_context(Nginx(_find("nginx"), _find("openssl"), server.endpoint))
            environ = server.environ_at(front.endpoint) | front.certificates.environ
        yield Place(server.fresh(), environ)


def _find(program: str) -> str:
    if (path := find(program)) is None:
        raise Unable(f"{program} is not installed: `make servers` installs what the real servers need")
    return path
