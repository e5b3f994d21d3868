"""The three clouds as whole saves meet them: which requests put something, and the words with which each refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest
import requests

from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.e2e.harness import Machine, in_order
from tests.e2e.processes import TIMEOUT
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Asked, Fault
from tests.servers.faults import FaultProxy
from tests.servers.program import Server

#: Bytes. Manifests, markers and outcomes of the suite's jobs are smaller, the objects of `test_bad_days` are larger.
LARGE = 50_000
#: Bytes of a request to Cloud Storage. That of an announcement is smaller, and that of every manifest, marker and outcome larger.
ANNOUNCEMENT = 600


def puts(asked: Asked) -> bool:
    """Whether a request puts an object. An announcement does not count: it comes at any instant beside a save."""
    if asked.path.startswith("/upload/"):  # Cloud Storage has the name in the body
        return int(asked.headers.get("content-length", 0)) > ANNOUNCEMENT
    return asked.method == "PUT" and SAVING not in asked.path


def puts_large(asked: Asked) -> bool:
    return puts(asked) and int(asked.headers.get("content-length", 0)) > LARGE


def puts_small(asked: Asked) -> bool:
    return puts(asked) and not puts_large(asked)


def _s3(status: int, code: str) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>said by the test</Message></Error>".encode()
    return Fault("answer", status=status, body=body, headers={"Content-Type": "application/xml"})


def _gs(status: int, reason: str) -> Fault:
    errors = [{"reason": reason, "domain": "global", "message": "said by the test"}]
    body = {"error": {"code": status, "message": "said by the test", "errors": errors}}
    kind = {"Content-Type": "application/json"}
    return Fault("answer", status=status, body=json.dumps(body).encode(), headers=kind)


def _az(status: int, code: str, ahead: float = 0.0) -> Fault:
    """Args: ahead: seconds by which the service's clock is ahead of 2001."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>said by the test</Message></Error>'
    headers = {"x-ms-error-code": code, "Content-Type": "application/xml"}
    if ahead:
        headers["Date"] = formatdate(978307200 + ahead, usegmt=True)
    return Fault("answer", status=status, body=body.encode(), headers=headers)


def _remove_s3(server: Server, bucket: str) -> None:
    store = open_store(f"s3://{bucket}")
    store.delete([info.key for info in store.list("")])
    requests.delete(f"{server.endpoint}/{bucket}", timeout=TIMEOUT).raise_for_status()


def _remove_gs(server: Server, bucket: str) -> None:
    store = open_store(f"gs://{bucket}")
    store.delete([info.key for info in store.list("")])
    requests.delete(f"{server.endpoint}/storage/v1/b/{bucket}", timeout=TIMEOUT).raise_for_status()


def _remove_az(server: Server, bucket: str) -> None:
    from azure.storage.blob import BlobServiceClient

    connection = server.environ["AZURE_STORAGE_CONNECTION_STRING"]
    with BlobServiceClient.from_connection_string(connection) as service:
        service.delete_container(bucket)


@dataclass(frozen=True, slots=True)
class Cloud:
    """One of them: the fixture of its server, and what it says when."""

    server: str
    busy: Fault
    denied: Fault
    full: Fault
    #: Removes a bucket with all that is in it, from behind.
    remove: Callable[[Server, str], None]
    wrong_clock: Fault | None = None


CLOUDS = {
    "s3": Cloud(
        "moto",
        busy=_s3(503, "SlowDown"),
        denied=_s3(403, "AccessDenied"),
        wrong_clock=_s3(403, "RequestTimeTooSkewed"),
        full=_s3(403, "QuotaExceeded"),
        remove=_remove_s3,
    ),
    "gs": Cloud(
        "gcs",
        busy=_gs(503, "backendError"),
        denied=_gs(403, "forbidden"),
        full=_gs(403, "quotaExceeded"),
        remove=_remove_gs,
    ),
    "az": Cloud(
        "azurite",
        busy=_az(503, "ServerBusy"),
        denied=_az(403, "AuthorizationPermissionMismatch"),
        wrong_clock=_az(403, "AuthenticationFailed", ahead=1.0),
        full=_az(507, "InsufficientStorage"),
        remove=_remove_az,
    ),
}


@dataclass(frozen=True, slots=True)
class Day:
    """A new bucket of one cloud, and the network before it."""

    cloud: Cloud
    server: Server
    url: str
    network: FaultProxy
    #: Through the network, as the job has it; and past it, as the test looks: it asks again, because a server closes a connection
    #: that nobody has used for some seconds, at times as it is used again.
    store: BlobStore
    behind: BlobStore

    def names(self) -> list[str]:
        return [info.key for info in self.behind.list("")]

    def remove(self) -> None:
        self.cloud.remove(self.server, self.url.partition("://")[2].partition("/")[0])


class InCloud(Machine):
    """A machine whose store is a bucket."""

    def __init__(self, folder: Path, day: Day) -> None:
        super().__init__(folder)
        self.url = day.url
        self._day = day

    def committed(self, run_id: str = "job") -> list[tuple[int, int, int]]:
        manifest = re.compile(f"{run_id}/checkpoints/([^/]+)/00000-of-00001.json")
        found = map(manifest.fullmatch, self._day.names())
        return in_order(match[1] for match in found if match is not None)

    def outlast_announcements(self) -> None:
        # A store's dates cannot be set: it is as if no announcement had arrived.
        self._day.behind.delete([name for name in self._day.names() if name.endswith("/SAVING.json")])


def begin_day(scheme: str, request: pytest.FixtureRequest, faults_before: FaultsBefore, seed: int = 0) -> Day:
    cloud = CLOUDS[scheme]
    server = request.getfixturevalue(cloud.server)
    url = f"{server.fresh()}/some/prefix"
    behind = open_store(url)
    behind.warm()  # the environment names the server itself, now
    network = faults_before(server, seed)
    looks = RetryingStore(behind, SystemClock(), "the test cannot look")
    return Day(cloud, server, url, network, open_store(url), looks)
