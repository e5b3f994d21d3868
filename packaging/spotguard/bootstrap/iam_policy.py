"""The least permissions that a machine's identity needs in its store, as a policy with the store's names in it."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.url import Location, locate, scheme_of

from . import options
from .plan import Cloud

#: The file of each cloud's policy, and the URL scheme of its store.
_FILES = {"aws": ("aws.json", "s3"), "gcp": ("gcp.json", "gs"), "azure": ("azure.json", "az")}


def policy(cloud: Cloud, store: str) -> str:
    """Return the policy in the cloud's own form: an IAM policy of AWS, a custom IAM role of GCP, a role definition of Azure.

    Args:
        cloud: the cloud of the machine.
        store: the URL of the store.

    Raises:
        UsageError: the URL cannot be used on the machine, or names another cloud's store.
    """
    name, scheme = _FILES[cloud]
    # `place` refuses a bucket or prefix with * or ?, which would be wildcards in a policy.
    options.place("--store", store)
    if scheme_of(store) != scheme:
        raise UsageError(f"--store {store!r}: expected {scheme}://…, for a policy of {cloud}")
    at = locate(store)
    text = resources.files(__package__).joinpath("iam-policies", name).read_text()
    # Names are quoted as JSON, so that a bucket's name cannot add anything else to the document.
    for mark, value in (("BUCKET", at.bucket), ("PREFIX/*", f"{at.prefix}*")):
        text = text.replace(mark, json.dumps(value)[1:-1])
    if cloud == "aws" and (key := _key(at)):
        document = json.loads(text)
        document["Statement"].append(key)
        text = json.dumps(document, indent=2) + "\n"
    return text


def _key(at: Location) -> dict[str, Any] | None:
    """Return the statement for the KMS key that the URL names; None if the policy needs none.

    The machine encrypts its uploads with the key, and decrypts its downloads. AWS's own key, aws/s3, needs no statement.
    """
    key = at.options.get("kms-key-id", "")
    if not key or key.endswith("alias/aws/s3"):
        return None
    if not re.fullmatch(r"[A-Za-z0-9:/_-]+", key):
        raise UsageError(f"--store: kms-key-id={key!r} is not a KMS key; use its ARN, its id, or alias/NAME")
    statement: dict[str, Any] = {"Effect": "Allow", "Action": ["kms:GenerateDataKey", "kms:Decrypt"]}
    head, mark, alias = key.rpartition("alias/")
    if mark:  # these actions take no alias as a resource; a condition on the key takes one
        statement["Resource"] = f"{head or 'arn:aws:kms:*:*:'}key/*"
        statement["Condition"] = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": f"alias/{alias}"}}
    else:
        statement["Resource"] = key if key.startswith("arn:") else f"arn:aws:kms:*:*:key/{key}"
    return statement
