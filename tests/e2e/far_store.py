"""A store that is a machine of a rack, S3 by moto: everybody reaches it by their own wire, and by nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from tests.e2e.machines import Node, Rack
from tests.e2e.processes import eventually
from tests.servers.moto import ACCESS_KEY, SECRET_KEY, s3_environ

_PORT = 5000
#: `asked METHOD URL`: the status and the body, by the standard library alone.
_ASKING = """
import sys, urllib.error, urllib.request
try:
    request = urllib.request.Request(sys.argv[2], method=sys.argv[1])
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.status, answer.read().decode())
except OSError as error:
    print(0, error)
"""


class FarStore:
    """With one bucket, into which the nodes that are `serve`d save."""

    def __init__(self, rack: Rack, require_server: Callable[[str], str]) -> None:
        self.node = rack.add()
        self._endpoint = f"http://{self.node.address}:{_PORT}"
        self._environ = s3_environ(self._endpoint, ACCESS_KEY, SECRET_KEY)
        self.node.start(require_server("moto_server"), "-H", "0.0.0.0", "-p", f"{_PORT}", PYTHONPATH="")
        eventually(lambda: self._ask("PUT", "/bucket").startswith("200"), "the store answers")
        self.serve(self.node)

    def serve(self, *nodes: Node) -> None:
        """What is started there from now on has its store here."""
        for node in nodes:
            node.url = "s3://bucket/prefix"
            node.env |= self._environ

    def keys(self, step: int) -> list[str]:
        """What is there of a step's checkpoints: the names in their folders."""
        listed = self._ask("GET", "/bucket?list-type=2&prefix=prefix/job/checkpoints/")
        found = (part.partition("</Key>")[0].split("/") for part in listed.split("<Key>")[1:])
        return ["/".join(name[4:]) for name in found if name[3].startswith(f"{step:09}-")]

    def shares(self, step: int) -> list[int]:
        """Of which rank how many bytes are in the newest whole checkpoint of that step, by what `spotguard inspect` says. (It refers
        to what was put for an earlier one.)"""
        words = f"inspect {self.node.url} --run-id job --step {step} --json".split()
        asked = self.node.spotguard(*words)
        assert asked.ended() == 0, asked.account()
        said = json.loads(asked.out.to_the_end())
        shares = [0] * said["world"]
        for each in said["objects"]:
            shares[int(each["key"].split("/")[-2].partition("-")[0])] += each["bytes"]
        return shares

    def _ask(self, method: str, path: str) -> str:
        words = (sys.executable, "-S", "-c", _ASKING, method, self._endpoint + path)
        asked = self.node.start(*words)
        asked.ended()
        return asked.out.to_the_end()
