"""Warnings about a valid plan that is probably a mistake: the machine would run, but cost work or money."""

from __future__ import annotations

import re
import shlex

import spotguard
from spotguard.agent.config.parsers import DEADLINE, DEADLINE_EXAMPLE
from spotguard.agent.config.parsers import deadline as parse_deadline
from spotguard.providers.stores.url import CLOUDS, locate, scheme_of

from . import requirement
from .plan import BootstrapPlan

#: URL scheme of each cloud's own store, which its machines can access by their identity.
_OWN = {"aws": "s3", "gcp": "gs", "azure": "az"}


def doubts(plan: BootstrapPlan, version: str = spotguard.__version__) -> list[str]:
    """Return the warnings, one sentence each, for standard error and for the head of the printed text.

    Args:
        plan: the checked plan.
        version: the version of spotguard.
    """
    warnings = _of_packages(plan, version)
    scheme = scheme_of(plan.store)
    if scheme == "file":
        warnings.append(
            f"checkpoints go to {plan.store}: on the machine's own disk they are gone with the machine; it has to be a network file "
            "system that the image mounts there, or name a bucket"
        )
    # A URL with an endpoint may name any provider's store.
    elif scheme != _OWN[plan.cloud] and "endpoint" not in locate(plan.store).options:
        warnings.append(
            f"checkpoints leave {plan.cloud} for {CLOUDS[scheme].name}: each save is paid for as traffic, and the machine's identity "
            f"opens nothing there; its credentials go into /etc/spotguard/runs/{plan.run_id}.env"
        )
    if (end := plan.run.get("deadline")) and parse_deadline(DEADLINE, end).after is not None:
        warnings.append(
            f"--deadline {end} is counted from each start of the job, and the unit starts it again 5 s after such an end: for one end of all, pass a "
            f"time, as in {DEADLINE_EXAMPLE}Z"
        )
    if plan.run.get("webhook"):
        warnings.append(
            "--webhook is in user-data, which everything on the machine reads: put a URL that is a secret as SPOTGUARD_WEBHOOK into "
            f"/etc/spotguard/runs/{plan.run_id}.env"
        )
    program = shlex.split(plan.command)[0]
    if program.endswith((".py", ".sh")) and "/" not in program:
        warnings.append(
            f"{program} would be looked for on the machine's PATH, as a program: for a script in the job's directory use … -- "
            f"{'python' if program.endswith('.py') else 'sh'} {program}, or ./{program} where it may be executed"
        )
    # Blanks in a directory's name are valid. `program` has already refused a word that is certainly no path.
    if re.search(r"\s", program.rpartition("/")[2]):
        warnings.append(
            f"{program!r} is run as one program of that name, blanks and all: for a program and its arguments leave the quotes out, as in … -- "
            "torchrun train.py"
        )
    if plan.cloud == "azure" and re.search(r"\b(poweroff|shutdown|halt)\b", plan.then):
        warnings.append(
            "azure has a machine that was only switched off from inside paid for: --then has to deallocate it, as in "
            "--then 'az login --identity && az vm deallocate --ids …'"
        )
    return warnings


def _of_packages(plan: BootstrapPlan, version: str) -> list[str]:
    """Return the warnings about the packages. No index or server is asked here: the machine asks them later."""
    warnings = []
    ours, *others = plan.packages.split("\n")
    if requirement.of_an_index(ours):
        if ".dev" in version and not plan.index:
            warnings.append(
                f"--package {ours} is looked for in pip's own index, which does not have this version ({version}): pass a "
                f"wheel of it, as in --package {requirement.EXAMPLE}, or --index"
            )
        if not requirement.is_pinned(ours):
            warnings.append(
                f"--package {ours} is the newest version of the day on which a machine boots: for one version on all pass spotguard==…"
            )
    for url in filter(None, map(requirement.unknown, (ours, *others))):
        warnings.append(
            f"{url} ends as no wheel and no archive: pip goes by what the server calls it, and where that is a page the setup fails on "
            "every machine"
        )
    return warnings
