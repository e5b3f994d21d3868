"""nginx, as TLS before a store that speaks none, and as the ceiling: a place for bytes that does nothing else.

Both at `endpoint` (https, with a certificate of the test's own authority) and at `plain` (http).
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence

import requests

from tests.servers.certificates import Certificates, make_certificates
from tests.servers.program import Server

_CONFIGURATION = """
daemon off;
worker_processes 2;
error_log stderr warn;
pid {folder}/nginx.pid;
{user}
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    sendfile on;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{tls} ssl;
        ssl_certificate {certificates.certificate};
        ssl_certificate_key {certificates.key};
        location = /-/nginx {{ return 204; }}
        location = /-/accepted {{ stub_status; }}
        location / {{ {location} }}
    }}
}}
"""

# Host, and the path as it was written, are in the signature. Bodies are passed on as they come.
_FRONT = """
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering off;
"""

_DAV = """
            root {folder}/files;
            dav_methods PUT DELETE;
            create_full_put_path on;
"""


class Nginx(Server):
    """Args: the programs' paths; the endpoint to stand before, or None to keep files by PUT, GET and DELETE."""

    def __init__(self, program: str, openssl: str, upstream: str | None = None) -> None:
        super().__init__("nginx")
        self._program, self._openssl = program, openssl
        self._upstream = upstream
        self._asked = 0
        #: The same without TLS.
        self.plain = ""
        self.certificates: Certificates

    def commands(self) -> Sequence[Sequence[str]]:
        plain, tls = self.port(), self.port()
        self.plain, self.endpoint = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}"
        self.certificates = make_certificates(self.folder, self._openssl)
        (self.folder / "files").mkdir()
        location = _DAV if self._upstream is None else _FRONT
        user = getpass.getuser()
        configuration = _CONFIGURATION.format(
            folder=self.folder,
            user="user root root;" if user == "root" else "",  # else it would leave root, and this folder
            plain=plain,
            tls=tls,
            certificates=self.certificates,
            location=location.format(folder=self.folder, upstream=self._upstream),
        )
        (self.folder / "nginx.conf").write_text(configuration)
        return [[self._program, "-e", "stderr", "-p", str(self.folder), "-c", "nginx.conf"]]

    def answers(self) -> bool:
        return requests.get(f"{self.plain}/-/nginx", timeout=10).status_code == 204

    def accepted(self) -> int:
        """Connections so far, those of this question left out."""
        self._asked += 1
        said = requests.get(f"{self.plain}/-/accepted", timeout=10).text
        # Active connections: 1 server accepts handled requests 9 9 9 …
        return int(said.split()[7]) - self._asked
