"""Install hints for optional packages: the one place that makes them.

A hint names the packages themselves, not `spotguard[s3]`. For that name pip asks an index for spotguard. If spotguard was
installed from a clone or a wheel, the index has none, or another one. The extra stands beside the packages, for the
next installation.
"""

from __future__ import annotations

#: The same requirements as in pyproject.toml; a test compares them. Packages that only add speed are not listed.
PACKAGES = {
    "s3": ("boto3>=1.36",),
    "gcs": ("google-cloud-storage>=2.18",),
    "azure": ("azure-storage-blob>=12.20", "azure-identity>=1.17"),
    "torch": ("torch>=2.6", "numpy>=1.26"),
    "metrics": ("prometheus-client>=0.20",),
    "bootstrap": ("packaging>=23",),
}


def how_to_install(extra: str) -> str:
    """Return the command to type and the extra's name: "pip install 'boto3>=1.36' (spotguard's extra s3)"."""
    packages = " ".join(f"'{package}'" for package in PACKAGES[extra])
    return f"pip install {packages} (spotguard's extra {extra})"
