"""Answers by `responses`, in place of `requests`' adapter: for what is made of an answer, whichever way it came.

What happens on the way (proxies, redirects, caps, timeouts, connections) is tried over real sockets, in `test_metadata`.
"""

from __future__ import annotations

from responses import RequestsMock

from spotguard.providers.clouds.aws.imds import PROOF_PATH, TOKEN_PATH
from spotguard.providers.clouds.azure.imds import NAME_PATH
from spotguard.providers.clouds.gcp.metadata import ROOT

#: Nobody listens there: a request that is not answered here is refused.
CANNED = "http://127.0.0.1:9"
#: Below it lie Compute Engine's keys.
GCP = CANNED + ROOT
#: By which Google signs.
GOOGLE = {"Metadata-Flavor": "Google"}


def an_instance(canned: RequestsMock) -> None:
    """EC2's service gives a token, and shows the key that every instance has."""
    canned.put(CANNED + TOKEN_PATH, body=b"token")
    canned.get(CANNED + PROOF_PATH, body=b"i-0123456789abcdef0")


def a_vm_of_azure(canned: RequestsMock, name: bytes = b"vm_1") -> None:
    """Azure's service tells the machine its name."""
    canned.get(CANNED + NAME_PATH, body=name)
