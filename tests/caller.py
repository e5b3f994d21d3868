"""The caller's environment: what it asks of the suite, and what of it no test may see: spotguard's options, and what says to a
cloud's SDK who we are and where it is."""

from __future__ import annotations

import os
from collections.abc import Iterable

#: What the caller asks, read before the environment is swept; `conftest` hands it to xdist's workers, which begin behind that.
#: CI sets the first, so that a missing server is a failure there; the others name the files of `tests.flaky` and `tests.times`.
ASKED = {
    name: os.environ.get(name, "")
    for name in ("SPOTGUARD_REQUIRE_SERVERS", "SPOTGUARD_FLAKY", "SPOTGUARD_TIMES")
}

#: Whole families: each SDK reads new ones with every release.
_FAMILIES = ("SPOTGUARD_", "AWS_", "AZURE_", "GOOGLE_", "GCLOUD_", "GCE_", "CLOUDSDK_")
#: What stands outside: of Azure's identities (azure-identity, `_constants.py`), of Google's emulator, of boto.
_OTHERS = ("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "IDENTITY_SERVER_THUMBPRINT", "IMDS_ENDPOINT", "MSI_ENDPOINT", "MSI_SECRET",
           "STORAGE_EMULATOR_HOST", "BOTO_CONFIG", "DETECT_GCE_RESIDENCY", "NO_GCE_CHECK")  # fmt: skip


def to_be_swept(names: Iterable[str]) -> list[str]:
    """Those of these variables."""
    return [name for name in names if name.startswith(_FAMILIES) or name in _OTHERS]


def servers_required() -> bool:
    """Whether a test fails that needs a program, or a right, which this machine does not give; else it skips."""
    return ASKED["SPOTGUARD_REQUIRE_SERVERS"] == "1"
