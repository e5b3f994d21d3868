"""EC2's metadata service, version 2: a session token, and reads that carry it.

Written from the "Instance Metadata Service" pages of the EC2 User Guide and from what its users met:
a cached token that the service no longer takes (aws/aws-sdk-java-v2#5764), a retry that sent the old token
beside the new one (aws-node-termination-handler, pkg/ec2metadata), a hop limit that swallows only the token's
answer (DataDog/datadog-agent#55269), and clients that then go on without a token, unseen (botocore).
Version 1 is never spoken here: the one read without a token is a diagnosis, and its body is not used.
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

#: A key that every instance has, and what it looks like: whoever has it not is no instance's service.
PROOF_PATH = "/latest/meta-data/instance-id"
_INSTANCE_ID = re.compile(rb"i-[0-9a-z]{1,40}")

#: Six hours, the most that is granted.
TOKEN_TTL = 21600

#: Printable, in one word: real ones are base64. What a portal or another service answers to a PUT is not.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=:-]{1,1024}")

#: Seconds for the diagnosis. Behind a short hop limit a read without a token is refused within 10 ms.
_PROBE_TIMEOUT = 0.5

#: Seconds for everything that one `get` may send: a token that is refused, a new one, the read again.
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
    """The base URL: what the user said, else what the ecosystem's own variables say, else AWS's IPv4 address.

    Raises:
        UsageError: one of them is not what it must be.
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
    """Reads of metadata keys, each with a token that is valid. For one thread.

    Args:
        instance: the instance's id where it is known, so that advice can be copied as it stands.
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
        #: With the token that we hold, a key was read that must be there.
        self._proved = False
        #: Why the token could not be renewed although the one we hold is still good; "" when all is well.
        self.trouble = ""

    def get(self, path: str) -> MetadataAnswer | Health:
        """The key at `path`: an answer of any status but 401, else why there is none."""
        self._give_up_at = self._clock.monotonic() + GET_TIMEOUT
        answer = self._fetch(path)
        renewable = isinstance(answer, MetadataAnswer) and answer.status in (200, 404)
        if renewable and self._clock.monotonic() >= self._renew_at:
            self._renew_early()
        return answer

    def doubt(self) -> Health | None:
        """Why an absent key is no good news here; None where it is. Within the time of the last `get`.

        Whatever takes a PUT and knows no path, a web server or another service on this address, would pass for an
        instance without a notice. So each new token has to read one key that is there on every instance.
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
        """How well we see, where the key at `path` was answered like that, and its body was of no use."""
        return self._judge(f"GET {self._client.endpoint}{path}", answer)

    def close(self) -> None:
        self._client.close()

    def _fetch(self, path: str) -> MetadataAnswer | Health:
        if self._clock.monotonic() >= self._expires_at and (problem := self._renew()):
            return problem
        answer = self._read(path)
        if isinstance(answer, MetadataAnswer) and answer.status == 401:
            # The service may forget a token before its time. Within this look, or a notice waits for the next.
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
        """Ask for a new token, and hold it; else say why there is none."""
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
        """At half its life, after the read so that no notice waits for it. A failure leaves the old token, and
        half of what is left of that one until the next try."""
        if problem := self._renew():
            self.trouble = f"the token could not be renewed yet: {problem.detail}; {problem.advice}"
            now = self._clock.monotonic()
            self._renew_at = now + max(1.0, (self._expires_at - now) / 2)

    def _hop_limit(self, what: str) -> Health | None:
        """The fingerprint of a hop limit that is too small: only the answer to the PUT is sent with it."""
        answer = self._client.send(self._probe, timeout=min(_PROBE_TIMEOUT, self._left()))
        if isinstance(answer, Failure) or (answer.status == 200 and _is_html(answer.body)):
            return None
        if answer.status not in (200, 401, 404):
            return None
        detail = f"{what}: no answer, while a GET without a token is answered at once ({answer.status})"
        return blind("hop-limit", detail, _HOP_LIMIT.format(instance=self._instance))

    def _judge(self, what: str, answer: MetadataAnswer | Failure) -> Health:
        """What an answer that is of no use says about how well we see."""
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
            case 404 | 405:  # of the token, for a read may be 404: whoever answers has no version 2
                return wrong_server(f"{detail}: it issues no tokens", _WRONG_SERVER)
        return blind("garbage", detail, _WRONG_SERVER)


def _seconds(text: str) -> float:
    """The granted life of a token; what we asked for where the service does not say."""
    return float(min(int(text), TOKEN_TTL)) if re.fullmatch(r"[0-9]{1,9}", text) else float(TOKEN_TTL)


def _is_html(body: bytes) -> bool:
    return body.lstrip().startswith(b"<")


def _signed(answer: MetadataAnswer) -> str:
    """Who says it was them; AWS's own is "EC2ws"."""
    return "" if answer.headers.get("Server") == "EC2ws" else server_named(answer)
