"""The Dockerfile and the Kubernetes manifests, with the values that depend on the cloud or on this version filled in."""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

import spotguard
from spotguard.providers.errors import UsageError

Cloud = Literal["aws", "gcp", "azure"]
CLOUDS: tuple[Cloud, ...] = ("aws", "gcp", "azure")

#: The files, each with a description, in the order of their use: the image, the agent on the nodes, jobs with that agent, and
#: jobs without it.
FILES = {
    "dockerfile": "an image of spotguard, or one on top of yours",
    "agent": "the agent on every spot node, for all jobs: a DaemonSet",
    "job": "one pod that trains, under spotguard run",
    "indexed-job": "a job on several nodes: a pod for each, torchrun among them",
    "alone": "as job, without an agent on the node",
    "sidecar": "as alone, with the agent as a sidecar of the command",
    "node-label": "the right of a job to label the node that failed",
}
DOCKERFILE = "dockerfile"
NODE_LABEL = "node-label"
#: Files that are the same for every cloud.
FOR_EVERY_CLOUD = (DOCKERFILE, NODE_LABEL)
MANIFESTS = tuple(name for name in FILES if name not in FOR_EVERY_CLOUD)
#: Manifests that name the agent's image. The others name only the job's image.
WITH_IMAGE = ("agent", "sidecar")

#: Seconds from SIGTERM to SIGKILL that a node of this cloud's Kubernetes can grant during a preemption. AWS: the drain begins
#: with the notice, which is 120 s long. GKE: the kubelet leaves 15 s of the 30 s to pods that are not system pods
#: (docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms). Azure: the warning itself.
GRACE: dict[Cloud, int] = {"aws": 120, "gcp": 15, "azure": 30}
#: Seconds of the grace by which SIGTERM may be late on a busy node, or the kubelet's clock ahead of the agent's.
MARGIN = 3

#: A placeholder for the agent's image in the cluster's registry, which `--image` replaces.
IMAGE = "registry.example.org/spotguard"
#: An image reference: host, path, tag, digest.
_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]*")


def window(cloud: Cloud) -> int:
    """Return the seconds of warning that a SIGTERM gives a pod, for `--window`."""
    return GRACE[cloud] - MARGIN


def text(name: str, cloud: Cloud | None = None, image: str = "") -> str:
    """Return the Dockerfile, or a manifest for `cloud`.

    Args:
        name: one of `FILES`.
        cloud: the cloud whose Kubernetes the manifest is for; None for the files of every cloud.
        image: the agent's image; "": the placeholder.

    Raises:
        UsageError: the file needs a cloud, or takes none; `image` is not a valid name, or the file names no such image.
    """
    if name in FOR_EVERY_CLOUD and cloud is not None:
        raise UsageError(f"{name} is for every cloud: leave {cloud!r} out")
    if image and name not in WITH_IMAGE:
        raise UsageError(f"--image: {name} holds no image of the agent: leave it out")
    if name == DOCKERFILE:
        return _read("Dockerfile", {"VERSION": spotguard.__version__})
    if name == NODE_LABEL:
        return _read("kubernetes/node-label.yaml", {})
    if cloud is None:
        raise UsageError(
            f"{name}: which cloud? Expected aws, gcp or azure, as in {name} aws: each gives a pod another time to end"
        )
    if image and not _IMAGE.fullmatch(image):
        raise UsageError(
            f"--image {image!r}: expected an image's name, as in {IMAGE}:{spotguard.__version__}"
        )
    words = {
        "CLOUD": cloud,
        "GRACE": str(GRACE[cloud]),
        "WINDOW": str(window(cloud)),
        "IMAGE": image or f"{IMAGE}:{spotguard.__version__}",
    }
    return _read(f"kubernetes/{name}.yaml", words)


def _read(name: str, words: dict[str, str]) -> str:
    template = resources.files(__package__).joinpath("template-files", name).read_text()
    for mark, word in words.items():
        template = template.replace(f"@{mark}@", word)
    return template
