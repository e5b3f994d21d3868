"""The least that a machine's identity needs in its store: what to give it, with this store's names in it."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.url import Location, locate

from . import options
from .plan import Cloud

#: Which file holds the policy, and what kind of store it is for.
_FILES = {"aws": ("aws.json", "s3"), "gcp": ("gcp.json", "gs"), "azure": ("azure.json", "az")}


def policy(cloud: Cloud, store: str) -> str:
    """The cloud's own document: an IAM policy, a custom role of IAM, a role definition.

    Raises:
        UsageError: the store is none for the machine either, or another cloud's.
    """
    name, scheme = _FILES[cloud]
    # A bucket's name has no * and no ?, which would be wildcards in a policy; nor has a prefix.
    options.place("--store", store)
    if urlsplit(store).scheme != scheme:
        raise UsageError(f"--store {store!r}: expected {scheme}://…, for a policy of {cloud}")
    at = locate(store)
    text = resources.files(__package__).joinpath("policies", name).read_text()
    # JSON's own quoting, so that no name of a bucket can be more than a name.
    for mark, value in (("BUCKET", at.bucket), ("PREFIX/*", f"{at.prefix}*")):
        text = text.replace(mark, json.dumps(value)[1:-1])
    if cloud == "aws" and (key := _key(at)):
        document = json.loads(text)
        document["Statement"].append(key)
        text = json.dumps(document, indent=2) + "\n"
    return text


def _key(at: Location) -> dict[str, Any] | None:
    """For the KMS key that the URL names: to encrypt what is put, to decrypt what is read. AWS's own key, aws/s3, needs none."""
    key = at.options.get("kms-key-id", "")
    if not key or key.endswith("alias/aws/s3"):
        return None
    if not re.fullmatch(r"[A-Za-z0-9:/_-]+", key):
        raise UsageError(f"--store: kms-key-id={key!r} is no key; use its ARN, its id, or alias/NAME")
    statement: dict[str, Any] = {"Effect": "Allow", "Action": ["kms:GenerateDataKey", "kms:Decrypt"]}
    head, mark, alias = key.rpartition("alias/")
    if mark:  # an alias is no resource of these actions, and a condition of any key's
        statement["Resource"] = f"{head or 'arn:aws:kms:*:*:'}key/*"
        statement["Condition"] = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": f"alias/{alias}"}}
    else:
        statement["Resource"] = key if key.startswith("arn:") else f"arn:aws:kms:*:*:key/{key}"
    return statement
