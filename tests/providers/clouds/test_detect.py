"""Which cloud it is, by files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.clouds.detect import detect

UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"


def machine(root: Path, **files: str) -> Path:
    """A root whose DMI says this; `hypervisor` and `cloud_id` are the two files elsewhere."""
    for name, text in files.items():
        folder = {"hypervisor": "sys/hypervisor", "cloud_id": "run/cloud-init"}.get(name, "sys/class/dmi/id")
        file = {"hypervisor": "uuid", "cloud_id": "cloud-id"}.get(name, name)
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / file).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cloud", "files"),
    [
        ("aws", {"sys_vendor": "Amazon EC2", "board_asset_tag": "i-0123456789abcdef0"}),
        ("aws", {"sys_vendor": "Xen", "board_vendor": "Amazon EC2"}),
        ("aws", {"sys_vendor": "Xen", "hypervisor": UUID}),
        ("aws", {"sys_vendor": "Xen", "product_uuid": UUID.upper(), "product_serial": UUID}),
        ("aws", {"product_uuid": "45E12AEC-DCD1-B213-94ED-012345ABCDEF", "product_serial": UUID}),
        ("gcp", {"sys_vendor": "Google", "product_name": "Google Compute Engine"}),
        ("gcp", {"product_serial": "GoogleCloud-0123456789ABCDEF"}),
        (
            "azure",
            {
                "sys_vendor": "Microsoft Corporation",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
        ),
        ("aws", {"cloud_id": "aws"}),
        ("gcp", {"cloud_id": "gce"}),
        ("azure", {"cloud_id": "azure"}),
    ],
)
def test_each_cloud_is_known_by_each_of_its_marks(tmp_path: Path, cloud: str, files: dict[str, str]) -> None:
    """Nitro, Xen, both byte orders of the UUID, and cloud-init's word where there is no firmware to ask."""
    assert detect(machine(tmp_path, **files)).cloud == cloud


@pytest.mark.parametrize(
    "files",
    [
        {"sys_vendor": "LENOVO", "product_name": "20XW"},
        {"sys_vendor": "Google", "product_name": "Google_Lillipup"},
        {"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"},
        {"sys_vendor": "QEMU", "product_uuid": UUID},
        {"sys_vendor": "Brightbox", "product_uuid": UUID, "product_serial": "ec2-1.gb1.brightbox.com"},
        {"chassis_asset_tag": "1234.zstack.io", "hypervisor": UUID},
        {"sys_vendor": "e24cloud", "hypervisor": UUID},
        {"sys_vendor": "Tilaa", "hypervisor": UUID},
        {"sys_vendor": "3DS Outscale", "product_name": "3DS Outscale VM", "hypervisor": UUID},
        {"sys_vendor": "QEMU", "cloud_id": "aws"},
        {"cloud_id": "nocloud"},
    ],
    ids=lambda files: next(iter(files.values())),
)
def test_look_alikes_and_laptops_are_no_cloud(tmp_path: Path, files: dict[str, str]) -> None:
    """A Chromebook is Google's, a Hyper-V is Microsoft's, and others imitate EC2."""
    found = detect(machine(tmp_path, **files))
    assert (found.cloud, found.instance) == ("none", "")


def test_the_instance_id_is_known_without_the_network(tmp_path: Path) -> None:
    """So that advice can name it when the network is what fails."""
    root = machine(tmp_path, sys_vendor="Amazon EC2", board_asset_tag="i-0123456789abcdef0")
    assert detect(root).instance == "i-0123456789abcdef0"


def test_the_facts_behind_a_detected_cloud_are_told(tmp_path: Path) -> None:
    """`doctor` shows from what it was decided."""
    found = detect(machine(tmp_path, sys_vendor="LENOVO", chassis_asset_tag="No Asset Tag"))
    assert dict(found.read) == {
        "sys/class/dmi/id/sys_vendor": "LENOVO",
        "sys/class/dmi/id/chassis_asset_tag": "No Asset Tag",
    }
    assert found.unknown == ()


def test_firmware_that_is_hidden_is_unknown_and_not_no_cloud(tmp_path: Path) -> None:
    """As in a container that masks /sys."""
    found = detect(tmp_path)
    assert (found.cloud, found.read, found.unknown) == ("none", (), ("sys/class/dmi/id",))


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Some are root's. (A folder in the file's place refuses also root, as which these tests may run.)"""
    root = machine(tmp_path, sys_vendor="Xen")
    (root / "sys/class/dmi/id/product_serial").mkdir()
    found = detect(root)
    assert (found.cloud, found.unknown) == ("none", ("sys/class/dmi/id/product_serial",))


def test_bytes_that_are_no_text_harm_nothing(tmp_path: Path) -> None:
    """Firmware strings are what a vendor typed."""
    root = machine(tmp_path, sys_vendor="x")
    (root / "sys/class/dmi/id/product_name").write_bytes(b"\xff\xfe\x00")
    assert detect(root).cloud == "none"


def test_this_machine_is_looked_at_without_error() -> None:
    """Whatever it is."""
    assert detect().cloud in ("aws", "gcp", "azure", "none")
