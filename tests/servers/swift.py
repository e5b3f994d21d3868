"""S3 by OpenStack Swift, as it runs in production: it checks signatures, MD5s, CRC32s and the size of parts.

It returns no checksum with HEAD, and its `If-None-Match: *` looks first and writes after: races belong to moto.
Heavy beside the others (five processes): ask for it where the checks matter.
"""

from __future__ import annotations

import getpass
import itertools
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import requests

from tests.servers.moto import REGION, s3_environ
from tests.servers.program import Server

USER, SECRET_KEY = "test:tester", "testing"

# One copy of everything on one device: what is tested is the door, not the storage behind it.
_RINGS = """
import sys
from swift.common.ring import RingBuilder
for name, port in zip(("account", "container", "object"), sys.argv[1:]):
    builder = RingBuilder(4, 1, 1)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1"})
    builder.rebalance()
    builder.get_ring().save(name + ".ring.gz")
"""

_ALL = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
workers = 0
log_level = WARNING
"""

_BACKEND = """
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
network_chunk_size = 1048576
disk_chunk_size = 1048576
"""

_PROXY = """
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache listing_formats bulk s3api tempauth copy slo dlo versioned_writes symlink proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
client_chunk_size = 1048576
object_chunk_size = 1048576
[filter:s3api]
use = egg:swift#s3api
location = {region}
min_segment_size = 5242880
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
"""

_FILTERS = [
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "listing_formats",
    "bulk",
    "copy",
    "slo",
    "dlo",
    "versioned_writes",
    "symlink",
]


class Swift(Server):
    """Args: the path of swift-proxy-server, which has its kin beside it, and that of memcached."""

    def __init__(self, program: str, memcached: str) -> None:
        super().__init__("swift")
        self._bin = Path(program).parent
        self._memcached = memcached
        self._ports: dict[str, int] = {}
        self._buckets = itertools.count(1)

    def environment(self) -> dict[str, str]:
        return {"SWIFT_CONF_FILE": str(self.folder / "swift.conf")}

    def commands(self) -> Sequence[Sequence[str]]:
        names = ("account", "container", "object")
        self._ports = {name: self.port() for name in (*names, "proxy", "memcached")}
        self.endpoint = f"http://127.0.0.1:{self._ports['proxy']}"
        (self.folder / "devices/d1").mkdir(parents=True)
        hashes = "[swift-hash]\nswift_hash_path_suffix = s\nswift_hash_path_prefix = p\n"
        (self.folder / "swift.conf").write_text(f"{hashes}[storage-policy:0]\nname = one\ndefault = yes\n")
        for name in (*names, "proxy"):
            (self.folder / f"{name}.conf").write_text(self._configuration(name))
        rings = [str(self._bin / "python"), "-c", _RINGS, *(str(self._ports[name]) for name in names)]
        subprocess.run(rings, cwd=self.folder, env={**os.environ, **self.environment()}, check=True)
        # It will not run as root unless it is told who else to be.
        memcached = [self._memcached, *(["-u", "nobody"] if os.geteuid() == 0 else [])]
        return [
            [*memcached, "-l", "127.0.0.1", "-p", str(self._ports["memcached"]), "-U", "0"],
            *(
                [str(self._bin / f"swift-{name}-server"), f"{self.folder}/{name}.conf", "-v"]
                for name in (*names, "proxy")
            ),
        ]

    def _configuration(self, name: str) -> str:
        head = _ALL.format(port=self._ports[name], user=getpass.getuser(), folder=self.folder)
        if name != "proxy":
            return head + _BACKEND.format(name=name)
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in _FILTERS)
        memcached = self._ports["memcached"]
        return head + _PROXY.format(region=REGION, secret=SECRET_KEY, memcached=memcached) + filters

    def answers(self) -> bool:
        # All listen before the first question: the proxy avoids a server that it once found absent.
        for port in self._ports.values():
            socket.create_connection(("127.0.0.1", port), 10).close()
        return self._make("probe").ok

    def environ_at(self, endpoint: str) -> dict[str, str]:
        return s3_environ(endpoint, USER, SECRET_KEY)

    def fresh(self) -> str:
        bucket = f"bucket-{os.getpid()}-{next(self._buckets)}"
        self._make(bucket).raise_for_status()
        return f"s3://{bucket}"

    def _make(self, bucket: str) -> requests.Response:
        """Through Swift's own door, where no request needs a signature."""
        who = {"X-Auth-User": USER, "X-Auth-Key": SECRET_KEY}
        welcome = requests.get(f"{self.endpoint}/auth/v1.0", headers=who, timeout=10)
        if not welcome.ok:
            return welcome
        token = {"X-Auth-Token": welcome.headers["X-Auth-Token"]}
        return requests.put(f"{welcome.headers['X-Storage-Url']}/{bucket}", headers=token, timeout=10)
