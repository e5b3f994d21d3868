"""An image and a cluster: the Dockerfile and the Kubernetes manifests, with the few words in them that are the cloud's or this version's."""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

import spotguard
from spotguard.providers.errors import UsageError

Cloud = Literal["aws", "gcp", "azure"]
CLOUDS: tuple[Cloud, ...] = ("aws", "gcp", "azure")

#: The files, with what each is, in the order in which they are met: the image, the agent of the nodes, jobs beside it, jobs without it.
FILES = {
    "dockerfile": "an image of spotguard, or one on top of yours",
    "agent": "the agent on every spot node, for all jobs: a DaemonSet",
    "job": "one pod that trains, under spotguard run",
    "indexed-job": "a job on several nodes: a pod for each, torchrun among them",
    "alone": "as job, without an agent on the node",
    "sidecar": "as alone, with the agent as a sidecar of the command",
}
DOCKERFILE = "dockerfile"
MANIFESTS = tuple(name for name in FILES if name != DOCKERFILE)
#: In which the agent's image stands. The others have the job's own.
WITH_IMAGE = ("agent", "sidecar")

#: Seconds from SIGTERM to SIGKILL that a node of this cloud's Kubernetes can keep to while the machine goes. AWS: the drain
#: begins with the notice, which is 120 s long. GKE: its kubelet leaves 15 s of the 30 to pods that are not the system's
#: (docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms). Azure: the warning itself.
GRACE: dict[Cloud, int] = {"aws": 120, "gcp": 15, "azure": 30}
#: Of these, what a SIGTERM may be late on a busy node, and what the kubelet's clock is ahead of ours.
MARGIN = 3

#: Where a cluster gets the image of the agent: to be replaced by `--image`.
IMAGE = "registry.example.org/spotguard"
#: A reference as registries have it: host, path, tag, digest.
_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._/:@-]*")


def window(cloud: Cloud) -> int:
    """Seconds that a SIGTERM is worth in a pod, for `--window`."""
    return GRACE[cloud] - MARGIN


def text(name: str, cloud: Cloud | None = None, image: str = "") -> str:
    """The Dockerfile, or a manifest for that cloud.

    Args:
        name: one of `FILES`.

    Raises:
        UsageError: it needs a cloud, or takes none; the image's name cannot be one, or would stand nowhere.
    """
    if name == DOCKERFILE and cloud is not None:
        raise UsageError(f"{name} is for every cloud: leave {cloud!r} out")
    if image and name not in WITH_IMAGE:
        raise UsageError(f"--image: {name} holds no image of the agent: leave it out")
    if name == DOCKERFILE:
        return _read("Dockerfile", {"VERSION": spotguard.__version__})
    if cloud is None:
        raise UsageError(
            f"{name}: which cloud? Say aws, gcp or azure, as in {name} aws: each gives a pod another time to end"
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
    found = resources.files(__package__).joinpath("templates", name).read_text()
    for mark, word in words.items():
        found = found.replace(f"@{mark}@", word)
    return found
