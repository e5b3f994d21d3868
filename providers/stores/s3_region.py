"""In which region a bucket is looked for. Of a wrong one S3 says which one it should have been."""

from __future__ import annotations

from collections.abc import Mapping

from .urls import Location

#: Where nobody says one: it answers for all of them.
_USUAL = "us-east-1"


def region_of(at: Location, env: Mapping[str, str], found: str | None) -> str:
    """
    Args:
        found: what botocore has found: in AWS_DEFAULT_REGION, else in the profile. AWS's other SDKs ask AWS_REGION, which it does not know.
    """
    return at.options.get("region") or found or env.get("AWS_REGION") or _USUAL
