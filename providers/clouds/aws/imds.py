"""EC2's metadata service, version 2: a session token, and reads that carry it.

Written from the "Instance Metadata Service" pages of the EC2 User Guide and from problems of its users:

- The service no longer accepts a cached token (aws/aws-sdk-java-v2#5764).
- A retry sends the old token beside the new one (aws-node-termination-handler, pkg/ec2metadata).
- A hop limit drops only the token's answer (DataDog/datadog-agent#55269).
- Clients then silently go on without a token (botocore).

This client never uses version 1: its only read without a token is a diagnosis, whose body it ignores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...clock import Clock
from ...errors import UsageError
from ...health import Health, blind, wrong_server
from ..http import Failure, MetadataAnswer, MetadataClient, coded, no_answer, parse_endpoint, server_named

ENDPOINTS = {"IPv4": "http://169.254.169.254", "IPv6": "http://[fd00:ec2::254]"}

TOKEN_PATH = "/latest/api/token"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"

#: A key of every instance, and the form of its value. A server without it is not an instance's metadata service.
PROOF_PATH = "/latest/meta-data/instance-id"
_INSTANCE_ID = re.compile(rb"i-[0-9a-z]{1,40}")

#: Seconds: six hours, the longest life that the service grants.
TOKEN_TTL = 21600

#: A token is one printable word: real ones are base64. A portal's or another service's answer to a PUT has another form.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=:-]{1,1024}")

#: Seconds for the diagnosis. Even behind a short hop limit, the service refuses a read without a token within 10 ms.
_PROBE_TIMEOUT = 0.5

#: Seconds for all requests of one `get`: a refused token, a new token, the second read.
GET_TIMEOUT = 4.0

_UNREACHABLE = (
    "is this an EC2 instance with its metadata service on? `--provider none` watches without a cloud"
)
_FIREWALL = "look for a firewall rule that keeps this user from the metadata service (iptables -L OUTPUT)"
_FORBIDDEN = (
    "switch it on: aws ec2 modify-instance-metadata-options --instance-id {instance} --http-endpoint enabled"
)
_HOP_LIMIT = (
    "raise the hop limit: aws ec2 modify-instance-metadata-options --instance-id {instance} "
    "--http-put-response-hop-limit 2 (3 below an overlay network); in Kubernetes: hostNetwork: true"
)
_UNAUTHORIZED = (
    "another program between us and the service may hold its own tokens: look for a metadata proxy"
)
_WRONG_SERVER = (
    "check --metadata-endpoint and AWS_EC2_METADATA_SERVICE_ENDPOINT, and what answers at this address"
)
_MISSING = (
    "every instance has this key: a metadata proxy that hides it may hide the notice too; let both through"
)
_THROTTLED = "another program on this machine asks too often: throttling counts all requests of an instance"


def resolve_endpoint(explicit: str | None, environ: Mapping[str, str]) -> str:
    """Return the base URL: the user's option, else the AWS SDKs' environment variables, else AWS's IPv4 address.

    Raises:
        UsageError: the option or a variable is invalid.
    """
    if explicit:
        return parse_endpoint(explicit, "--metadata-endpoint")
    variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    if environ.get(variable):
        return parse_endpoint(environ[variable], variable)
    # The SDKs compare the mode without case.
    mode = environ.get(f"{variable}_MODE") or "IPv4"
    for known, endpoint in ENDPOINTS.items():
        if mode.lower() == known.lower():
            return endpoint
    raise UsageError(f"{variable}_MODE {mode!r}: expected IPv4 or IPv6")


class AwsImds:
    """Reads of metadata keys, each with a valid token. For one thread.

    Args:
        instance: the instance's id if it is known, so that users can copy commands from the advice unchanged.
    """

    def __init__(self, endpoint: str, clock: Clock, *, instance: str = "", timeout: float = 2.0) -> None:
        self._client = MetadataClient(endpoint, timeout=timeout)
        self._clock = clock
        self._instance = instance or "INSTANCE_ID"
        self._put = self._client.prepare("PUT", TOKEN_PATH, {TTL_HEADER: str(TOKEN_TTL)})
        self._probe = self._client.prepare("GET", "/latest/meta-data/", {})
        self._reads = {"": self._probe}
        self._token = ""
        self._renew_at = self._expires_at = self._give_up_at = 0.0
        #: Whether a key that must exist was read with the current token.
        self._proved = False
        #: Why the token could not be renewed while the current one is still valid; "" if there is no problem.
        self.trouble = ""

    def get(self, path: str) -> MetadataAnswer | Health:
        """Return the answer for the key at `path`, with any status but 401, or the reason why there is none."""
        self._give_up_at = self._clock.monotonic() + GET_TIMEOUT
        answer = self._fetch(path)
        renewable = isinstance(answer, MetadataAnswer) and answer.status in (200, 404)
        if renewable and self._clock.monotonic() >= self._renew_at:
            self._renew_early()
        return answer

    def doubt(self) -> Health | None:
        """Return why an absent key is no good news here, or None if it is. Shares the time of the last `get`.

        A web server or another service on this address may accept a PUT and know no path. It would pass for an
        instance without a notice. So each new token must read one key that every instance has.
        """
        if self._proved:
            return None
        what = f"GET {self._client.endpoint}{PROOF_PATH}"
        answer = self._fetch(PROOF_PATH)
        if isinstance(answer, Health):
            return answer
        if answer.status == 404:
            return coded(blind("missing-key", f"{what}: 404{_signed(answer)}", _MISSING), answer)
        if answer.status != 200:
            return self._judge(what, answer)
        if not _INSTANCE_ID.fullmatch(answer.body.strip()):
            stranger = wrong_server(f"{what}: 200, and what came is no id{_signed(answer)}", _WRONG_SERVER)
            return coded(stranger, answer)
        self._proved = True
        return None

    def judge(self, path: str, answer: MetadataAnswer) -> Health:
        """Return the source's health after an answer for `path` whose body was of no use."""
        return self._judge(f"GET {self._client.endpoint}{path}", answer)

    def close(self) -> None:
        self._client.close()

    def _fetch(self, path: str) -> MetadataAnswer | Health:
        if self._clock.monotonic() >= self._expires_at and (problem := self._renew()):
            return problem
        answer = self._read(path)
        if isinstance(answer, MetadataAnswer) and answer.status == 401:
            # The service may forget a token early. Renew it within this poll, or a notice waits for the next poll.
            if problem := self._renew():
                return problem
            answer = self._read(path)
        if isinstance(answer, Failure) or answer.status == 401:
            return self._judge(f"GET {self._client.endpoint}{path}", answer)
        return answer

    def _read(self, path: str) -> MetadataAnswer | Failure:
        request = self._reads.get(path)
        if request is None:
            request = self._reads[path] = self._client.prepare("GET", path, {})
        request.headers[TOKEN_HEADER] = self._token  # replaced: two tokens in one request are refused
        return self._client.send(request, timeout=self._left())

    def _left(self) -> float:
        return max(0.1, self._give_up_at - self._clock.monotonic())

    def _renew(self) -> Health | None:
        """Fetch and store a new token, or return the reason why there is none."""
        answer = self._client.send(self._put, timeout=self._left())
        what = f"PUT {self._client.endpoint}{TOKEN_PATH}"
        if isinstance(answer, Failure):
            if answer.kind == "timeout" and (health := self._hop_limit(what)):
                return health
            return self._judge(what, answer)
        if answer.status != 200:
            return self._judge(what, answer)
        if not _TOKEN.fullmatch(answer.body):
            stranger = wrong_server(f"{what}: 200, and what came is no token{_signed(answer)}", _WRONG_SERVER)
            return coded(stranger, answer)
        self._token, self._proved = answer.body.decode(), False
        now = self._clock.monotonic()
        ttl = _seconds(answer.headers.get(TTL_HEADER, ""))
        self._renew_at, self._expires_at = now + ttl / 2, now + ttl
        self.trouble = ""
        return None

    def _renew_early(self) -> None:
        """Renew the token at half its life, after the read, so that no notice waits for it.

        After a failure the old token stays. The next try comes after half of its remaining life.
        """
        if problem := self._renew():
            self.trouble = f"the token could not be renewed yet: {problem.detail}; {problem.advice}"
            now = self._clock.monotonic()
            self._renew_at = now + max(1.0, (self._expires_at - now) / 2)

    def _hop_limit(self, what: str) -> Health | None:
        """Return the diagnosis of a hop limit that is too small: the limit applies only to the answer to the PUT."""
        answer = self._client.send(self._probe, timeout=min(_PROBE_TIMEOUT, self._left()))
        if isinstance(answer, Failure) or (answer.status == 200 and _is_html(answer.body)):
            return None
        if answer.status not in (200, 401, 404):
            return None
        detail = f"{what}: no answer, while a GET without a token is answered at once ({answer.status})"
        return blind("hop-limit", detail, _HOP_LIMIT.format(instance=self._instance))

    def _judge(self, what: str, answer: MetadataAnswer | Failure) -> Health:
        """Return the source's health after an answer that was of no use, with the answer's status."""
        return coded(self._meaning(what, answer), answer)

    def _meaning(self, what: str, answer: MetadataAnswer | Failure) -> Health:
        if isinstance(answer, Failure):
            return no_answer(answer, timeout=_FIREWALL, unreachable=_UNREACHABLE, stranger=_WRONG_SERVER)
        detail = f"{what}: {answer.status}{_signed(answer)}"
        match answer.status:
            case 401:
                return blind("unauthorized", f"{detail} also with a fresh token", _UNAUTHORIZED)
            case 403:
                return blind("forbidden", detail, _FORBIDDEN.format(instance=self._instance))
            case 429:
                return blind("throttled", detail, _THROTTLED)
            case status if status >= 500:
                return blind("server-error", detail, "nothing to do: asked again until it answers")
            case 404 | 405:  # only for the token, since a read may be 404: this server has no version 2
                return wrong_server(f"{detail}: it issues no tokens", _WRONG_SERVER)
        return blind("garbage", detail, _WRONG_SERVER)


def _seconds(text: str) -> float:
    """Return the token's life in seconds as granted; if the service names none, the life that was requested."""
    return float(min(int(text), TOKEN_TTL)) if re.fullmatch(r"[0-9]{1,9}", text) else float(TOKEN_TTL)


def _is_html(body: bytes) -> bool:
    return body.lstrip().startswith(b"<")


def _signed(answer: MetadataAnswer) -> str:
    """Return " from NAME" for a server other than AWS's own, "EC2ws"; else ""."""
    return "" if answer.headers.get("Server") == "EC2ws" else server_named(answer)
