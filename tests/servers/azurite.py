"""Azure Blob Storage by Azurite, Microsoft's emulator: it checks the key, MD5s, leases and conditions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import requests

from tests.servers.program import Server

ACCOUNT = "devstoreaccount1"
# Published with Azurite, for everybody: it opens nothing but an emulator.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(Server):
    def __init__(self, program: str) -> None:
        super().__init__("azurite")
        self._program = program
        self._containers = itertools.count(1)

    def commands(self) -> Sequence[Sequence[str]]:
        port = self.port()
        self.endpoint = f"http://127.0.0.1:{port}"
        # The SDK speaks a newer version of the API than Azurite knows, which it would refuse: --skipApiVersionCheck.
        # Telemetry is on by default, and would talk to the outside.
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
        return [[self._program, *options, "--blobPort", str(port), "--location", str(self.folder)]]

    def answers(self) -> bool:
        return requests.get(f"{self.endpoint}/{ACCOUNT}?comp=list", timeout=10).status_code == 403

    def environ_at(self, endpoint: str) -> dict[str, str]:
        protocol = endpoint.partition(":")[0]
        words = {
            "DefaultEndpointsProtocol": protocol,
            "AccountName": ACCOUNT,
            "AccountKey": KEY,
            "BlobEndpoint": f"{endpoint}/{ACCOUNT}",
        }
        return {"AZURE_STORAGE_CONNECTION_STRING": ";".join(f"{name}={word}" for name, word in words.items())}

    def fresh(self) -> str:
        from azure.storage.blob import (
            BlobServiceClient,
        )  # here: half a second that few processes of the suite need

        container = f"container-{os.getpid()}-{next(self._containers)}"
        connection = self.environ["AZURE_STORAGE_CONNECTION_STRING"]
        with BlobServiceClient.from_connection_string(connection) as service:
            service.create_container(container)
        return f"az://{container}"
