"""`python -m spotguard.containers NAME [CLOUD]`: print the Dockerfile, or a manifest."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.commands.parsers import Parser
from spotguard.providers.errors import UsageError

from .manifests import NAMES, text

DESCRIPTION = "Prints the Dockerfile, or a Kubernetes manifest for a cloud. Both are yours from then on: docs/containers.md, docs/kubernetes.md."


def main(words: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m spotguard.containers", description=DESCRIPTION)
    parser.add_argument("name", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument(
        "cloud", nargs="?", choices=("aws", "gcp", "azure"), help="whose Kubernetes: EKS, GKE or AKS"
    )
    parser.add_argument("--image", default="", help="the agent's image, where your cluster gets it")
    try:
        said = parser.parse_args(words)
        sys.stdout.write(text(said.name, said.cloud, said.image))
    except UsageError as error:
        print(f"spotguard: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
