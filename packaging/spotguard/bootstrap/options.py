"""Check of `run`'s options for another machine, which reads them later.

That machine has its own directories and time zone, and not the environment of this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from spotguard.agent.config import parsers, resolve
from spotguard.agent.config.options import Options
from spotguard.agent.config.parsers import DEADLINE_EXAMPLE, Deadline
from spotguard.agent.sources.deadline import DeadlineSource
from spotguard.providers.clock import Clock
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.names import ACCOUNT, check_named
from spotguard.providers.stores.url import CLOUDS, locate, read_url, scheme_of

#: Region names that botocore accepts (`validate_region_name`). S3-compatible services have names of their own (RegionOne).
_REGION = re.compile(r"(?![0-9]+\Z)(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
#: The first port that a user without privileges may open: the kernel's `ip_unprivileged_port_start`.
_FIRST_PORT = 1024


_EXPECTED = f"a time with its zone, as in {DEADLINE_EXAMPLE}Z (or +01:00), Unix seconds, or +3600 or 2h30m from each start of the job"


def read(flags: Mapping[str, str], user: str, clock: Clock) -> Options:
    """Return the parsed options of `run`.

    Args:
        flags: the options, by name.
        user: the user that runs the job.
        clock: the time now, so that a deadline in the past is refused.

    Raises:
        UsageError: an option cannot be used on the machine.
    """
    if "config" in flags:
        raise UsageError("--config: the machine has a file of its own: give the options themselves")
    if "exit-code" in flags:
        raise UsageError("--exit-code: leave it out; the machine's unit restarts the job on exit code 75")
    folders = dict.fromkeys(("stage", "socket", "notice-file"), _on_the_machine)
    readers = {**folders, "store": store, "deadline": _to_come(clock)}
    options = resolve.resolve("run", flags, {}, readers=readers)
    if options.metrics_port is not None and options.metrics_port < _FIRST_PORT and user != "root":
        raise UsageError(
            f"--metrics-port {flags['metrics-port']!r}: a port below {_FIRST_PORT} is not for a user such as {user}: take one above, as in 9464"
        )
    return options


def store(origin: str, text: str) -> str:
    """Return the store's URL, checked for the machine, which has nothing but this URL."""
    place(origin, text)
    if _no_account(text):
        raise UsageError(
            f"{origin} {text!r}: the machine has no variable for the storage account: write az://container/prefix?account=NAME"
        )
    return text


def place(origin: str, text: str) -> None:
    """Refuse a URL that does not name a bucket or a container. The storage account may be missing."""
    if "://" not in text:  # the error does not propose a directory of this machine
        raise UsageError(
            f"{origin} {text!r}: expected a store's URL, as in s3://bucket/prefix, gs://bucket/prefix or az://container/prefix?account=NAME"
        )
    read_url(origin, text)
    region = locate(text).options.get("region") if scheme_of(text) in CLOUDS else None
    if region is not None and not _REGION.fullmatch(region):
        raise UsageError(f"{origin}: region={region!r} is no region's name, as in region=eu-west-1")
    # If the URL names no account, any account's name serves for the check.
    check_named(origin, text, {ACCOUNT: "any"} if _no_account(text) else {})


def _no_account(url: str) -> bool:
    return scheme_of(url) == "az" and not {"account", "endpoint"} & locate(url).options.keys()


def _to_come(clock: Clock) -> Callable[[str, str], Deadline]:
    """Return a reader of deadlines. It refuses a time in the past, and a time that depends on the machine's zone."""

    def read(origin: str, text: str) -> Deadline:
        parsed = parsers.deadline(origin, text, _EXPECTED)
        if parsed.wall is not None and _has_no_zone(text):
            raise UsageError(
                f"{origin} {text!r}: each machine would read it in its own zone, which may not be yours: add the zone, as in "
                f"{DEADLINE_EXAMPLE}+01:00, or Z for UTC"
            )
        DeadlineSource(parsed, clock)  # refuses a time in the past
        return parsed

    return read


def _has_no_zone(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()).tzinfo is None
    return False  # Unix seconds: some look like a date without its dashes


def _on_the_machine(origin: str, text: str) -> str:
    return parsers.absolute_path(origin, absolute(origin, text, "/mnt/nvme/spotguard"))


def absolute(flag: str, path: str, example: str) -> str:
    """Return `path` unchanged. Refuse a relative path: on the machine there is no directory that it could be relative to."""
    if not path.startswith("/"):
        raise UsageError(f"{flag} {path!r}: expected a path on the machine from its root, as in {example}")
    return path
