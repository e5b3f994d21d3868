"""`python -m spotguard.containers [FILE [CLOUD]]`: print the Dockerfile, or a manifest."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spotguard.cli import printing
from spotguard.cli.words import repeated
from spotguard.providers.errors import UsageError
from spotguard.providers.text import did_you_mean

from . import FILES
from .manifests import CLOUDS, MANIFESTS, Cloud, text

DESCRIPTION = "Prints the Dockerfile, or a Kubernetes manifest for a cloud. Both are yours from then on: docs/containers.md, docs/kubernetes.md."
FOR_A_CLOUD = (
    "All but the Dockerfile are for a cloud: aws, gcp or azure, as in python -m spotguard.containers job aws"
)


def main(words: Sequence[str] | None = None) -> int:
    return printing.main(_asked, words)


def _asked(words: list[str]) -> str:
    """The file that is named; without one, what there is."""
    if not words:
        return f"{printing.listed(FILES)}{FOR_A_CLOUD}\n"
    parser = printing.parser("spotguard.containers", DESCRIPTION, FILES)
    parser.of_clouds = "the cloud is the second word, as in job aws"
    parser.add_argument(
        "cloud", nargs="?", metavar="{aws,gcp,azure}", help="whose Kubernetes: EKS, GKE or AKS"
    )
    parser.add_argument("--image", default="", help="the agent's image, where your cluster gets it")
    said = parser.parse_args(words)
    _refuse_the_other_way_round(said.file, said.cloud)
    return text(printing.check(said.file, FILES), _cloud(said.cloud), said.image)


def _refuse_the_other_way_round(file: str, cloud: str | None) -> None:
    if file not in CLOUDS:
        return
    if cloud in FILES:
        raise UsageError(f"{file!r}: did you mean {cloud}{f' {file}' if cloud in MANIFESTS else ''}?")
    raise UsageError(
        f"{file!r}: which file for it? Say one of {', '.join(MANIFESTS)}, as in {MANIFESTS[0]} {file}"
    )


def _cloud(word: str | None) -> Cloud | None:
    for cloud in CLOUDS:
        if word == cloud:
            return cloud
    if word is None:
        return None
    near = did_you_mean(word, list(CLOUDS)) or "say aws, gcp or azure, as in job aws"
    raise UsageError(f"unknown cloud {repeated(word)!r}: {near}")


if __name__ == "__main__":
    sys.exit(main())
