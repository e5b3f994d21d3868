"""Detection of this machine's cloud from its firmware: it reads files only, never the network.

A laptop that asked 169.254.169.254 would wait in vain, and on a foreign network anybody may answer there.
The tests and the look-alikes are those of cloud-init's `tools/ds-identify`, which covers every known case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Cloud = Literal["aws", "gcp", "azure", "none"]

_DMI = "sys/class/dmi/id"
_XEN = "sys/hypervisor/uuid"
#: Written by cloud-init: the answer on images whose firmware has no DMI (some of aarch64).
_CLOUD_ID = "run/cloud-init/cloud-id"
_CLOUD_IDS: dict[str, Cloud] = {"aws": "aws", "gce": "gcp", "azure": "azure"}

#: The asset tag that all Azure VMs share. The vendor "Microsoft Corporation" is not enough: every Hyper-V has it.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


@dataclass(frozen=True, slots=True)
class Detection:
    """The detected cloud, and the evidence."""

    cloud: Cloud
    #: File and content, in the order they were read; `doctor` shows them.
    read: tuple[tuple[str, str], ...]
    #: Files that exist but cannot be read (some are root's), or that a container hides. With any of them, "none" does not
    #: prove that there is no cloud.
    unknown: tuple[str, ...]
    #: The instance's id if the firmware has it (EC2 on Nitro), else "".
    instance: str = ""


class _Firmware:
    """Reads each file once, and remembers its content."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.seen: dict[str, str] = {}
        self.unknown: list[str] = []

    def __call__(self, name: str) -> str:
        if name not in self.seen and name not in self.unknown:
            try:
                self.seen[name] = (self._root / name).read_text("ascii", "replace").strip("\0\n\t ")
            except FileNotFoundError:  # this firmware has no such field
                return ""
            except OSError:  # it exists but cannot be read: remembered as unknown
                self.unknown.append(name)
        return self.seen.get(name, "")


def detect(root: Path = Path("/")) -> Detection:
    """Read DMI below `root` and decide. An unreadable file counts neither for nor against any cloud."""
    files = _Firmware(root)
    if not (root / _DMI).is_dir():
        files.unknown.append(_DMI)

    def dmi(name: str) -> str:
        return files(f"{_DMI}/{name}")

    cloud: Cloud = "none"
    if _is_azure(dmi):
        cloud = "azure"
    elif _is_gcp(dmi):
        cloud = "gcp"
    elif not _is_look_alike(dmi):
        if _is_aws(dmi, files(_XEN)):
            cloud = "aws"
        elif not dmi("sys_vendor"):
            cloud = _CLOUD_IDS.get(files(_CLOUD_ID), "none")
    tag = dmi("board_asset_tag")
    instance = tag if cloud == "aws" and tag.startswith("i-") else ""
    return Detection(cloud, tuple(files.seen.items()), tuple(files.unknown), instance)


def cloud_of(provider: str) -> str:
    """Return the cloud that `--provider` names; "auto" means the cloud in this machine's firmware."""
    return detect().cloud if provider == "auto" else provider


def _is_azure(dmi: Callable[[str], str]) -> bool:
    return dmi("chassis_asset_tag") == _AZURE_TAG


def _is_gcp(dmi: Callable[[str], str]) -> bool:
    # Not google-auth's prefix "Google": every Chromebook has it as well.
    return dmi("product_name") == "Google Compute Engine" or dmi("product_serial").startswith("GoogleCloud-")


def _is_look_alike(dmi: Callable[[str], str]) -> bool:
    """Return whether this is a cloud with EC2's interface and imitated firmware, but without EC2's spot market."""
    return (
        dmi("product_serial").endswith(".brightbox.com")
        or dmi("chassis_asset_tag").endswith(".zstack.io")
        or dmi("sys_vendor") in ("e24cloud", "Tilaa", "3DS Outscale")
    )


def _is_aws(dmi: Callable[[str], str], hypervisor: str) -> bool:
    if "Amazon EC2" in (dmi("sys_vendor"), dmi("board_vendor")):
        return True
    if hypervisor.lower().startswith("ec2"):
        return True
    # One UUID in 4096 starts like this by chance; on EC2 the serial number is the same UUID (cloud-init, DataSourceEc2).
    if not dmi("product_serial").lower().startswith("ec2"):
        return False
    uuid = dmi("product_uuid").lower()
    # SMBIOS 2.6 and later may store the first group little-endian: "45e12aec" is ec2ae145.
    return uuid.startswith("ec2") or (uuid[4:5] == "2" and uuid[6:8] == "ec")
