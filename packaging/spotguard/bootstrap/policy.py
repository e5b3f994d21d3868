"""The least that a machine's identity needs in its store: what to give it, with this store's names in it."""

from __future__ import annotations

import json
from importlib import resources
from urllib.parse import urlsplit

from spotguard.providers.errors import UsageError

from .plan import Cloud

#: Which file holds the policy, and what kind of store it is for.
_FILES = {"aws": ("aws.json", "s3"), "gcp": ("gcp.json", "gs"), "azure": ("azure.json", "az")}


def policy(cloud: Cloud, store: str) -> str:
    """The cloud's own document: an IAM policy, a custom role of IAM, a role definition.

    Raises:
        UsageError: the store is another cloud's.
    """
    name, scheme = _FILES[cloud]
    parts = urlsplit(store)
    if parts.scheme != scheme:
        raise UsageError(f"--store {store!r}: expected {scheme}://…, for a policy of {cloud}")
    prefix = parts.path.strip("/")
    below = f"{prefix}/*" if prefix else "*"
    text = resources.files(__package__).joinpath("policies", name).read_text()
    # JSON's own quoting, so that no name of a bucket can be more than a name.
    for mark, value in (("BUCKET", parts.netloc), ("PREFIX/*", below)):
        text = text.replace(mark, json.dumps(value)[1:-1])
    return text
