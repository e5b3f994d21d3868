"""Cloud Storage: gcp-storage-emulator for the bytes, and the suite's own proxy before it for the rules."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Self

import requests

from tests.servers.gcs_proxy import GcsProxy
from tests.servers.program import Server

PROJECT = "spotguard-tests"


class Gcs(Server):
    def __init__(self, program: str) -> None:
        super().__init__("gcs")
        self._program = program
        self._proxy: GcsProxy | None = None
        self._buckets = itertools.count(1)

    def commands(self) -> Sequence[Sequence[str]]:
        self._port = self.port()
        return [
            [self._program, "start", "--host", "127.0.0.1", "--port", str(self._port), "--in-memory", "-q"]
        ]

    def answers(self) -> bool:
        return requests.get(f"http://127.0.0.1:{self._port}/", timeout=10).ok

    def start(self) -> Self:
        super().start()
        self._proxy = GcsProxy(self._port)
        self._proxy.start()
        self.endpoint = self._proxy.url
        return self

    def stop(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
        super().stop()

    def environ_at(self, endpoint: str) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": endpoint, "GOOGLE_CLOUD_PROJECT": PROJECT}

    def fresh(self) -> str:
        bucket = f"bucket-{os.getpid()}-{next(self._buckets)}"
        url = f"{self.endpoint}/storage/v1/b?project={PROJECT}"
        requests.post(url, json={"name": bucket}, timeout=10).raise_for_status()
        return f"gs://{bucket}"
