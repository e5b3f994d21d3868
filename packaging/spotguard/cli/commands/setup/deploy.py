"""`spotguard deploy [KIND [FILE [CLOUD]]]`: print a deployment file that spotguard ships, for the user to own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from spotguard.deploy import containers, monitoring, slurm
from spotguard.providers.errors import UsageError
from spotguard.providers.text import did_you_mean

from ...parser import Parser
from ...redaction import repeated

DESCRIPTION = """\
Print a file that comes with spotguard and is yours from then on. Without a file, list the files."""

#: The purpose of each kind.
KINDS = {
    "containers": "a Dockerfile, and Kubernetes manifests for EKS, GKE and AKS (docs/how-to/launch/containers.md, docs/how-to/launch/kubernetes.md)",
    "slurm": "a batch script for Slurm, which guards the command that it is given (docs/how-to/launch/slurm.md)",
    "monitoring": "what Prometheus, Grafana and Filebeat are given (docs/reference/metrics.md)",
}
#: The files of each kind that has several.
FILES: dict[str, Mapping[str, str]] = {"containers": containers.FILES, "monitoring": monitoring.FILES}
FOR_A_CLOUD = "All but dockerfile and node-label are for a cloud: aws, gcp or azure, as in spotguard deploy containers job aws"

EXAMPLES = """\
examples:
  spotguard deploy containers job aws >job.yaml
  spotguard deploy slurm >train.sbatch
  spotguard deploy monitoring rules.yml >rules.yml"""


def add_arguments(parser: Parser) -> None:
    parser.usage = "spotguard deploy [{containers,slurm,monitoring} [FILE [{aws,gcp,azure}]]] [--image IMAGE]"
    parser.of_words = parser.of_clouds = "the cloud is the last word, as in containers job aws"
    parser.add_argument(
        "kind", nargs="?", metavar="KIND", help="select containers, slurm or monitoring [list them]"
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="print this file of the kind [list them]")
    parser.add_argument(
        "cloud", nargs="?", metavar="CLOUD", help="set the cloud of a manifest: aws, gcp or azure"
    )
    parser.add_argument("--image", default="", help="set the image of agent and sidecar")


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(text(arguments.kind, arguments.file, arguments.cloud, arguments.image))
    return 0


def text(kind: str | None, file: str | None = None, cloud: str | None = None, image: str = "") -> str:
    """Return the text of the named file, or a list of the kinds or of a kind's files.

    Raises:
        UsageError: there is no such kind, file or cloud, or an argument does not fit the file.
    """
    if kind is None:
        return _listed(KINDS)
    _check(kind, KINDS)
    if kind != "containers" and image:
        raise UsageError(f"--image: {kind} holds no image of the agent: leave it out")
    if kind == "slurm":
        if file is not None:
            words = " ".join(word for word in (file, cloud) if word)
            raise UsageError(
                f"{words!r}: the script takes the job's words from sbatch: spotguard deploy slurm >train.sbatch, and then "
                "sbatch --nodes=2 train.sbatch torchrun train.py"
            )
        return slurm.batch_script()
    if file is None:
        return _listed(FILES[kind]) + (f"{FOR_A_CLOUD}\n" if kind == "containers" else "")
    if kind == "monitoring":
        if cloud is not None:
            raise UsageError(f"unknown word {repeated(cloud)!r}: {file} is for every cloud")
        return monitoring.text(_check(file, monitoring.FILES))
    _refuse_the_other_way_round(file, cloud)
    return containers.text(_check(file, containers.FILES), _cloud(cloud), image)


def _check(name: str, known: Mapping[str, str]) -> str:
    if name not in known:
        near = did_you_mean(name, list(known)) or f"expected one of {', '.join(known)}"
        raise UsageError(f"{repeated(name)!r}: {near}")
    return name


def _listed(names: Mapping[str, str]) -> str:
    """Return one line for each name, with its description."""
    width = max(map(len, names)) + 2
    return "".join(f"{name:{width}}{what}\n" for name, what in names.items())


def _refuse_the_other_way_round(file: str, cloud: str | None) -> None:
    if file not in containers.CLOUDS:
        return
    manifests = containers.MANIFESTS
    if cloud in containers.FILES:
        raise UsageError(f"{file!r}: did you mean {cloud}{f' {file}' if cloud in manifests else ''}?")
    raise UsageError(
        f"{file!r}: which file? Expected one of {', '.join(manifests)}, as in {manifests[0]} {file}"
    )


def _cloud(word: str | None) -> containers.Cloud | None:
    for cloud in containers.CLOUDS:
        if word == cloud:
            return cloud
    if word is None:
        return None
    near = did_you_mean(word, list(containers.CLOUDS)) or "expected aws, gcp or azure, as in job aws"
    raise UsageError(f"unknown cloud {repeated(word)!r}: {near}")
