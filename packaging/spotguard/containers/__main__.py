"""`python -m spotguard.containers [FILE [CLOUD]]`: print the Dockerfile, or a manifest."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.commands import printing

from . import FILES
from .manifests import text

DESCRIPTION = "Prints the Dockerfile, or a Kubernetes manifest for a cloud. Both are yours from then on: docs/containers.md, docs/kubernetes.md."
CLOUDS = (
    "All but the Dockerfile are for a cloud: aws, gcp or azure, as in python -m spotguard.containers job aws"
)


def main(words: Sequence[str] | None = None) -> int:
    return printing.main(_asked, words)


def _asked(words: list[str]) -> str:
    """The file that is named; without one, what there is."""
    if not words:
        return f"{printing.listed(FILES)}{CLOUDS}\n"
    parser = printing.parser("spotguard.containers", DESCRIPTION, FILES)
    parser.add_argument(
        "cloud", nargs="?", choices=("aws", "gcp", "azure"), help="whose Kubernetes: EKS, GKE or AKS"
    )
    parser.add_argument("--image", default="", help="the agent's image, where your cluster gets it")
    said = parser.parse_args(words)
    return text(printing.check(said.file, FILES), said.cloud, said.image)


if __name__ == "__main__":
    sys.exit(main())
