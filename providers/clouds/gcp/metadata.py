"""GCE's metadata service: one header sent with each request, and the same one required in each answer.

Written from Compute Engine's pages "View and query VM metadata" and "Troubleshoot metadata server access", and from
what its users met: pods behind a server that hides most keys and answers 404 (banzaicloud/preemption-exporter#3), a
404 of the real service that was not signed (googleapis/google-cloud-node#7688), 503 at any time
(taskcluster/taskcluster#6806). The service is reached by its address: no DNS stands between a notice and us.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...health import Health, blind, wrong_server
from ..http import (
    TIMEOUT,
    Failure,
    MetadataAnswer,
    MetadataClient,
    coded,
    no_answer,
    parse_endpoint,
    server_named,
)

ENDPOINT = "http://169.254.169.254"
ROOT = "/computeMetadata/v1/"

#: Seconds that any read may take; one that is not meant to hang has `metadata.TIMEOUT`.
LONGEST = 60.0

_FLAVOR = "Metadata-Flavor"
_GOOGLE = "Google"
_HEADERS = {_FLAVOR: _GOOGLE}

#: A key of every VM, which GKE's server shows as well: who signs this one is Google's.
_PROOF = "instance/id"

#: The service's own names, wherever `GCE_METADATA_HOST` says one of them.
_NAMES = ("metadata.google.internal", "metadata")

_UNREACHABLE = "is this a Compute Engine VM? `--provider none` watches without a cloud"
_FIREWALL = "look for a firewall rule that keeps this user from the metadata service (iptables -L OUTPUT)"
_FORBIDDEN = (
    "it refuses what was forwarded: look for a proxy that adds X-Forwarded-For or drops Metadata-Flavor"
)
_HIDDEN = (
    "every VM has this key: GKE's metadata server hides it from pods, so give the pod hostNetwork: true, and look for "
    "other metadata proxies"
)
_THROTTLED = "another program on this machine asks too often"
_WRONG_SERVER = "check --metadata-endpoint and GCE_METADATA_HOST, and what answers at this address"


def resolve_endpoint(explicit: str | None, environ: Mapping[str, str]) -> str:
    """The base URL: what the user said, else what the ecosystem's own variable says, else the fixed address.

    Raises:
        UsageError: one of them is not what it must be.
    """
    if explicit:
        return parse_endpoint(explicit, "--metadata-endpoint")
    variable = "GCE_METADATA_HOST"  # a host, or a host and a port, as Google's libraries read it
    said = environ.get(variable, "")
    if not said:
        return ENDPOINT
    name, colon, port = said.partition(":")
    if name.rstrip(".").lower() in _NAMES:
        return parse_endpoint(f"{ENDPOINT}{colon}{port}", variable)
    return parse_endpoint(said if "://" in said else f"http://{said}", variable)


class GcpMetadata:
    """Reads of metadata keys. For one thread.

    Args:
        timeout: seconds that a read may take.
        longest: seconds that one may take which asks for more.
    """

    def __init__(self, endpoint: str, *, timeout: float = TIMEOUT, longest: float = LONGEST) -> None:
        self._client = MetadataClient(endpoint, timeout=longest)
        self._timeout = timeout
        self._proof = self._client.prepare("GET", ROOT + _PROOF, _HEADERS)
        self._reads = {_PROOF: self._proof}

    def get(self, path: str, *, timeout: float | None = None) -> MetadataAnswer | Health:
        """The key at `path`, with what may follow a question mark: an answer of Google's, of any status that
        has something to say, else why there is none."""
        if (request := self._reads.get(path)) is None:
            if len(self._reads) > 8:  # each new ETag makes a new path of a hanging GET
                self._reads.clear()
            request = self._reads[path] = self._client.prepare("GET", ROOT + path, _HEADERS)
        answer = self._client.send(request, timeout=self._timeout if timeout is None else timeout)
        if isinstance(answer, Failure):
            failed = no_answer(answer, timeout=_FIREWALL, unreachable=_UNREACHABLE, stranger=_WRONG_SERVER)
            return coded(failed, answer)
        if not _signed(answer) and not self._vouched_for(answer):
            return self._judge_unsigned(path, answer)
        return answer

    def judge(self, path: str, answer: MetadataAnswer) -> Health:
        """How well we see, where the key at `path` was answered like that, and its body was of no use."""
        return coded(self._meaning(path, answer), answer)

    def _meaning(self, path: str, answer: MetadataAnswer) -> Health:
        detail = f"{self._named(path)}: {answer.status}"
        match answer.status:
            case 403:
                return blind("forbidden", detail, _FORBIDDEN)
            case 404:
                return blind("missing-key", f"{detail}{server_named(answer)}", _HIDDEN)
            case 429:
                return blind("throttled", detail, _THROTTLED)
            case status if status >= 500:
                return blind("server-error", detail, "nothing to do: asked again until it answers")
        return blind("garbage", detail, _WRONG_SERVER)

    def unread(self, path: str, answer: MetadataAnswer) -> Health:
        """The same, for a body that is not what this key can say."""
        if answer.status != 200:
            return self.judge(path, answer)
        shown = ascii(answer.body[:60].decode("utf-8", "replace"))
        advice = "no notice can be read from this: report it, with this line"
        return coded(blind("garbage", f"{self._named(path)}: cannot be read: {shown}", advice), answer)

    def close(self) -> None:
        self._client.close()

    def _named(self, path: str) -> str:
        return f"GET {self._client.endpoint}{ROOT}{path}"

    def _vouched_for(self, answer: MetadataAnswer) -> bool:
        """Whether an unsigned refusal is Google's all the same: within this look, a key that is there is signed.

        A 404 of the real service was seen without the header. To take it for a stranger's would show a wrong server
        where nothing is wrong; to take any 404 for Google's would show sight where there is none.
        """
        if answer.status != 404 and answer.status < 500:
            return False
        proof = self._client.send(self._proof, timeout=self._timeout)
        return isinstance(proof, MetadataAnswer) and proof.status == 200 and _signed(proof)

    def _judge_unsigned(self, path: str, answer: MetadataAnswer) -> Health:
        if answer.status in (403, 429) or answer.status >= 500:  # a gateway's, maybe: nobody sees, either way
            return self.judge(path, answer)
        said = answer.headers.get(_FLAVOR)
        flavor = f"{_FLAVOR} is {said[:40]!a}" if said else f"no {_FLAVOR}"
        detail = f"{self._named(path)}: {answer.status} with {flavor}{server_named(answer)}"
        return coded(wrong_server(detail, _WRONG_SERVER), answer)


def _signed(answer: MetadataAnswer) -> bool:
    return answer.headers.get(_FLAVOR) == _GOOGLE
