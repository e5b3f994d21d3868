"""An image and a cluster: the Dockerfile, and the Kubernetes manifests, as files that are printed and then yours.

`manifests` fills in what depends on the cloud and on this version; `python -m spotguard.containers` prints.
"""

from __future__ import annotations

#: The files, with what each is, in the order in which they are met: the image, the agent of the nodes, jobs beside it, jobs without it.
FILES = {
    "dockerfile": "an image of spotguard, or one on top of yours",
    "agent": "the agent on every spot node, for all jobs: a DaemonSet",
    "job": "one pod that trains, under spotguard run",
    "indexed-job": "a job on several nodes: a pod for each, torchrun among them",
    "alone": "as job, without an agent on the node",
    "sidecar": "as alone, with the agent as a sidecar of the command",
}
