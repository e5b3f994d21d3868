"""GCE's metadata service: one header goes with each request, and must come back in each answer.

Written from Compute Engine's pages "View and query VM metadata" and "Troubleshoot metadata server access", and from
problems of its users: pods behind a server that hides most keys and answers 404 (banzaicloud/preemption-exporter#3), a
404 of the real service without the header (googleapis/google-cloud-node#7688), 503 at any time
(taskcluster/taskcluster#6806). The client uses the service's address, so that no notice depends on DNS.
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

#: Seconds that any read may take. A read that is not meant to hang has `http.TIMEOUT`.
LONGEST = 60.0

_FLAVOR = "Metadata-Flavor"
_GOOGLE = "Google"
_HEADERS = {_FLAVOR: _GOOGLE}

#: A key of every VM, which GKE's server shows too. A server that signs its answer for this key is Google's.
_PROOF = "instance/id"

#: The service's own names. If `GCE_METADATA_HOST` holds one of them, the client uses the fixed address.
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
    """Return the base URL: the user's option, else the variable of Google's libraries, else the fixed address.

    Raises:
        UsageError: the option or the variable is invalid.
    """
    if explicit:
        return parse_endpoint(explicit, "--metadata-endpoint")
    variable = "GCE_METADATA_HOST"  # a host, or a host and a port, as in Google's libraries
    configured = environ.get(variable, "")
    if not configured:
        return ENDPOINT
    name, colon, port = configured.partition(":")
    if name.rstrip(".").lower() in _NAMES:
        return parse_endpoint(f"{ENDPOINT}{colon}{port}", variable)
    return parse_endpoint(configured if "://" in configured else f"http://{configured}", variable)


class GcpMetadata:
    """Reads of metadata keys. For one thread.

    Args:
        timeout: seconds that a read may take.
        longest: seconds that a read with a timeout of its own may take.
    """

    def __init__(self, endpoint: str, *, timeout: float = TIMEOUT, longest: float = LONGEST) -> None:
        self._client = MetadataClient(endpoint, timeout=longest)
        self._timeout = timeout
        self._proof = self._client.prepare("GET", ROOT + _PROOF, _HEADERS)
        self._reads = {_PROOF: self._proof}

    def get(self, path: str, *, timeout: float | None = None) -> MetadataAnswer | Health:
        """Return Google's answer for the key at `path`, a query included, or the reason why there is none.

        The answer may have any status.
        """
        if (request := self._reads.get(path)) is None:
            if len(self._reads) > 8:  # each new ETag gives a hanging GET a new path
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
        """Return the source's health after an answer for `path` whose body was of no use."""
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
        """Return the source's health after a body that this key never has."""
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
        """Return whether an unsigned refusal is Google's after all: then a key that exists is signed, within this poll.

        The real service has sent a 404 without the header. Taking that 404 for a foreign server's would report a wrong
        server without cause. Taking any 404 for Google's would report sight where there is none.
        """
        if answer.status != 404 and answer.status < 500:
            return False
        proof = self._client.send(self._proof, timeout=self._timeout)
        return isinstance(proof, MetadataAnswer) and proof.status == 200 and _signed(proof)

    def _judge_unsigned(self, path: str, answer: MetadataAnswer) -> Health:
        if answer.status in (403, 429) or answer.status >= 500:  # perhaps a gateway's: blind in either case
            return self.judge(path, answer)
        flavor_header = answer.headers.get(_FLAVOR)
        flavor = f"{_FLAVOR} is {flavor_header[:40]!a}" if flavor_header else f"no {_FLAVOR}"
        detail = f"{self._named(path)}: {answer.status} with {flavor}{server_named(answer)}"
        return coded(wrong_server(detail, _WRONG_SERVER), answer)


def _signed(answer: MetadataAnswer) -> bool:
    return answer.headers.get(_FLAVOR) == _GOOGLE
