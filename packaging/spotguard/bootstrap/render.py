"""The text of a plan for a launch template: one shell script, bare or inside a cloud-init document.

The script consists of a head of values and of `setup.sh`, which is the same for all plans. cloud-init runs the script at every
boot from its `scripts/per-boot`, as GCP's guest agent runs a startup-script. So the next boot retries a failed setup.
"""

from __future__ import annotations

import base64
import gzip
import shlex
import textwrap
from collections.abc import Mapping
from importlib import resources

import spotguard
from spotguard.providers.errors import UsageError

from .advice import advice
from .plan import BootstrapPlan, Cloud
from .warnings import doubts

#: Most bytes that each cloud accepts, before base64. EC2: "user data is limited to 16 KB, in raw form". Compute Engine: 256 KB
#: for a metadata value. Azure: 65535 bytes of custom data.
LIMITS: dict[Cloud, int] = {"aws": 16 * 1024, "gcp": 256 * 1024, "azure": 65535}

#: The script's path. cloud-init runs this directory at every boot (module scripts_per_boot), after the network and the users.
PER_BOOT = "/var/lib/cloud/scripts/per-boot/spotguard.sh"

#: Indent of the script's lines in the document. No other line begins so, and `sed` can find them by it.
_INDENT = " " * 6


def cloud_config(plan: BootstrapPlan) -> str:
    """Return user-data for cloud-init.

    The script in it is gzipped. The document itself stays text, because Compute Engine accepts no bytes as a metadata value. A
    person also reads the comments, and may add cloud-init keys.
    """
    # A fixed level and no time, so that the same plan gives the same text.
    packed = base64.encodebytes(gzip.compress(_script(plan).encode(), 9, mtime=0)).decode()
    content = textwrap.indent(packed, _INDENT)
    return _fitting(
        plan,
        f"#cloud-config\n{_comments(plan, startup_script=False)}"
        f"write_files:\n  - path: {PER_BOOT}\n    permissions: '0700'\n    encoding: gz+b64\n    content: |\n{content}",
    )


def startup_script(plan: BootstrapPlan) -> str:
    """Return the bare script, for an image without cloud-init, such as GCP's Debian. GCP's guest agent runs it at every boot."""
    head, _, rest = _script(plan).partition("\n")
    return _fitting(plan, f"{head}\n{_comments(plan, startup_script=True)}{rest}")


def _fitting(plan: BootstrapPlan, text: str) -> str:
    size, limit = len(text.encode()), LIMITS[plan.cloud]
    if size > limit:
        raise UsageError(
            f"what the machine is given would have {size} bytes, and {plan.cloud} takes {limit}: put what is long (the command, "
            "--prepare) into a file that --prepare fetches"
        )
    return text


def _comments(plan: BootstrapPlan, *, startup_script: bool) -> str:
    printed = (
        f"Printed by spotguard {spotguard.__version__}: run {plan.run_id} on {plan.cloud}, to {plan.store}."
    )
    lines = [printed, *(f"ATTENTION: {doubt}." for doubt in doubts(plan))]
    lines += advice(plan, startup_script=startup_script)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _script(plan: BootstrapPlan) -> str:
    head = {
        "run_id": plan.run_id,
        "packages": plan.packages,
        "index": plan.index,
        "python": plan.python,
        "user": plan.user,
        "directory": plan.directory,
        "prepare": plan.prepare,
        "restart": plan.restart,
        "at_end": plan.then,
        "patience": str(plan.patience),
        "allow": plan.allow,
        "command": plan.command,
        "agent_toml": _toml(plan.agent),
        "run_toml": _toml(plan.run),
    }
    values = "".join(f"{name}={shlex.quote(text)}\n" for name, text in head.items())
    body = resources.files(__package__).joinpath("setup.sh").read_text()
    # A value keeps its $NAME for a later shell to expand. shellcheck would warn of that as SC2016.
    return f"#!/bin/sh\n# shellcheck disable=SC2016\nset -eu\n\n{values}{body}"


def _toml(options: Mapping[str, str]) -> str:
    return "\n".join(f"{name} = {_string(text)}" for name, text in options.items())


def _string(text: str) -> str:
    """Return `text` as a basic string of TOML 1.0. Every option may be written as one."""
    escaped = "".join(
        f"\\u{ord(char):04X}"
        if ord(char) < 0x20 or ord(char) == 0x7F
        else {'"': '\\"', "\\": "\\\\"}.get(char, char)
        for char in text
    )
    return f'"{escaped}"'
