"""An image and a cluster: the Dockerfile, and the Kubernetes manifests, as files that are printed and then yours.

`manifests` fills in what depends on the cloud and on this version; `python -m spotguard.containers` prints.
"""

from __future__ import annotations
