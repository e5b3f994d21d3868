"""The label that the agent has set on its node: by a process of its own, which the agent's end waits for, but not for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.process.helpers import node_label
from spotguard.agent.process.helpers.node_label import LABEL, NodeLabel, node_of
from tests.fakes.api_server import ApiServer

pytest.importorskip("cryptography")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "n7") as server:
        monkeypatch.setattr(node_label, "MOUNT", str(server.account))
        yield server


def test_the_node_is_labelled_before_the_end(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    label = NodeLabel("n7", server.env)
    label.add("", "gpu", broken=True)
    label.close()
    assert server.labels("n7")[LABEL] == "gpu"
    (record,) = caplog.records
    assert "node n7 has the label spotguard.dev/unhealthy=gpu" in record.message


def test_a_refusal_is_logged_once_with_the_role_and_the_command_that_helps(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.permits = False
    label = NodeLabel("n7", server.env)
    label.add("", "gpu", broken=True)
    label.add("", "stall", broken=True)  # the run is leaving already
    label.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "resources: [nodes], verbs: [patch]" in record.message
    assert record.message.endswith("kubectl label --overwrite node n7 spotguard.dev/unhealthy=gpu")
    assert LABEL not in server.labels("n7")


def test_the_end_waits_no_longer_for_a_server_that_is_silent(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.silent.set()
    label = NodeLabel("n7", server.env, patience=0.0)
    label.add("", "gpu", broken=True)
    label.close()
    assert "did not answer in" in caplog.text
    assert LABEL not in server.labels("n7")


def test_a_process_that_crashes_is_no_server_that_is_silent(
    server: ApiServer, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\ncat >/dev/null\nexit 3\n")
    crashing.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(crashing))
    label = NodeLabel("n7", server.env)
    label.add("", "gpu", broken=True)
    label.close()
    assert "its process has ended with 3" in caplog.text
    assert "did not answer" not in caplog.text


@pytest.mark.parametrize(("machine", "broken"), [("node2", True), ("", False)])
def test_the_failure_of_another_machine_or_of_no_hardware_labels_nothing(
    server: ApiServer, machine: str, broken: bool
) -> None:
    label = NodeLabel("n7", server.env)
    label.add(machine, "gpu", broken=broken)
    label.close()
    assert server.requests == []


def test_only_a_pod_that_knows_its_node_and_has_a_token_labels_it(server: ApiServer) -> None:
    assert node_of({**server.env, "NODE_NAME": "n7"}) == "n7"
    assert node_of(server.env) == ""
    assert node_of({"NODE_NAME": "n7"}) == ""
    (server.account / "token").unlink()
    assert node_of({**server.env, "NODE_NAME": "n7"}) == ""
