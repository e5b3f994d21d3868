"""The part of Kubernetes' API server that a label of a node needs, over TLS on loopback: a PATCH as its documentation has it.

It knows the tokens and what RBAC lets each of them do, merges as RFC 7386 says, and answers a refusal with a `Status`.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.fakes.certificate import Certificate

TOKEN = "a-token-of-the-pod"


class ApiServer:
    """The server. `nodes` are its nodes; `account` is a service account's directory with a token for it."""

    def __init__(self, folder: Path, *nodes: str) -> None:
        self.nodes: dict[str, dict[str, Any]] = {
            name: {
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
                "spec": {"unschedulable": False},
            }
            for name in nodes
        }
        #: Whether a ClusterRole lets the account patch nodes.
        self.permits = True
        #: Statuses of the next answers, before it does what it is asked to.
        self.first: list[int] = []
        #: Set while it answers nothing.
        self.silent = threading.Event()
        self.requests: list[str] = []
        certificate = Certificate.made(folder)
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "token").write_text(TOKEN)
        (self.account / "ca.crt").write_bytes(certificate.ca.read_bytes())
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PATCH(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = certificate.server.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def env(self) -> dict[str, str]:
        """The variables that the kubelet sets in each container."""
        port = str(self._server.server_port)
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    def labels(self, node: str) -> dict[str, str]:
        labels: dict[str, str] = self.nodes[node]["metadata"]["labels"]
        return labels

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests.append(f"{request.command} {request.path}")
        if self.silent.is_set():
            self._over.wait()
            return
        status, answer = self._status(request, body)
        data = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _status(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.first:
            return self.first.pop(0), {"kind": "Status", "message": "the server is busy"}
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        name = urlsplit(request.path).path.removeprefix("/api/v1/nodes/")
        if not self.permits:
            user = 'User "system:serviceaccount:default:gpt-7b"'
            scope = 'cannot patch resource "nodes" in API group "" at the cluster scope'
            return 403, {"kind": "Status", "message": f'nodes "{name}" is forbidden: {user} {scope}'}
        if name not in self.nodes:
            return 404, {"kind": "Status", "message": f'nodes "{name}" not found'}
        if request.headers["Content-Type"] != "application/merge-patch+json":
            return 415, {"kind": "Status", "message": "the body of the request was in an unknown format"}
        self.nodes[name] = _merged(self.nodes[name], json.loads(body))
        return 200, self.nodes[name]


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
