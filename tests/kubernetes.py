"""The manifests, read as Kubernetes reads them: `container("job", "aws", "train")`."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from spotguard.deploy import containers as deployed
from spotguard.deploy.containers import Cloud

Words = dict[str, Any]


def documents(name: str, cloud: Cloud | None) -> list[Words]:
    """A copy, which a test may change."""
    return deepcopy(_read(name, cloud))


@cache
def _read(name: str, cloud: Cloud | None) -> list[Words]:
    yaml = pytest.importorskip("yaml")
    found: list[Words] = list(yaml.safe_load_all(deployed.text(name, cloud)))
    return found


def one(name: str, cloud: Cloud, kind: str) -> Words:
    (found,) = [each for each in documents(name, cloud) if each["kind"] == kind]
    return found


def pod(name: str, cloud: Cloud) -> Words:
    """The pod that it makes."""
    spec: Words = one(name, cloud, "DaemonSet" if name == "agent" else "Job")["spec"]["template"]["spec"]
    return spec


def containers(name: str, cloud: Cloud) -> Iterator[Words]:
    spec = pod(name, cloud)
    yield from spec.get("initContainers", [])
    yield from spec["containers"]


def container(name: str, cloud: Cloud, called: str) -> Words:
    (found,) = [each for each in containers(name, cloud) if each["name"] == called]
    return found


def environment(of: Words) -> dict[str, str]:
    return {each["name"]: each["value"] for each in of.get("env", []) if "value" in each}
