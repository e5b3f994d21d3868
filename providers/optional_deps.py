"""How a package that only some need is installed: the one place from which every such hint comes.

A hint names the packages themselves, and not `spotguard[s3]`: for that pip asks an index for spotguard, and finds none, or
another one, where it was installed from a clone or a wheel. The extra is named beside them, for the next installation.
"""

from __future__ import annotations

#: As pyproject.toml has them, which a test sees to. What only makes it faster is not asked for.
PACKAGES = {
    "s3": ("boto3>=1.36",),
    "gcs": ("google-cloud-storage>=2.18",),
    "azure": ("azure-storage-blob>=12.20", "azure-identity>=1.17"),
    "torch": ("torch>=2.6", "numpy>=1.26"),
    "metrics": ("prometheus-client>=0.20",),
}


def how_to_install(extra: str) -> str:
    """What a person types, and what it is called: "pip install 'boto3>=1.36' (spotguard's extra s3)"."""
    packages = " ".join(f"'{package}'" for package in PACKAGES[extra])
    return f"pip install {packages} (spotguard's extra {extra})"
