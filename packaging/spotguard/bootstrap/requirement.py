"""What pip is given on the machine: this version or what was said, with the extras for the store's SDK and for metrics.

pip's own forms (its "Requirement Specifiers", PEP 508): `spotguard[s3]==1.0` of an index, `spotguard[s3] @ URL`, `/path[s3]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

import spotguard
from spotguard.providers.errors import UsageError

#: The extra of the wheel that has each store's SDK.
EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}

_EXAMPLE = "https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl"
#: A name and its extras, and what may follow it: a version, or a place.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[(?P<extras>[\w\s,.-]*)\])?\s*(?P<rest>@.*|[=<>!~(].*|;.*)?"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH_WITH_EXTRAS = re.compile(r"(?P<path>/.*?)(?:\[(?P<extras>[\w\s,.-]*)\])?")
#: PEP 427: by its file name pip knows what a wheel holds.
_WHEEL = re.compile(r"spotguard-[^-/]+(?:-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl", re.IGNORECASE)

#: What pip fetches by itself; and from repositories (`git+https`), whose URLs end as they like.
_FETCHED = ("https", "http", "file")
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+[a-z-]+")
#: What pip installs from ("ARCHIVE_EXTENSIONS" of its filetypes).
_INSTALLED = (
    ".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tlz", ".tar.lz", ".tar.lzma",
)  # fmt: skip


def package(
    said: str | None, index: str, store: str, version: str = spotguard.__version__, *, metrics: bool = False
) -> str:
    """Spotguard itself.

    Args:
        metrics: with what `--metrics-port` needs.
        version: ours.

    Raises:
        UsageError: it cannot be found on the machine, or is no requirement.
    """
    extra = EXTRAS.get(urlsplit(store).scheme, "")
    needed = [name for name in (extra, "metrics" if metrics else "") if name]
    if said is None:
        if ".dev" in version and not index:
            raise UsageError(
                f"--package is missing: this is {version}, a development version, which is in no index: say where "
                f"the machine finds a wheel of it, as in --package {_EXAMPLE}, or --index with an index of your own"
            )
        return f"spotguard{_extras(None, needed)}=={version}"
    text = said.strip()
    if text.startswith("/"):
        found = _PATH_WITH_EXTRAS.fullmatch(text)
        assert found is not None
        _check_wheel(said, found["path"])
        return f"{found['path']}{_extras(found['extras'], needed)}"
    if _URL.match(text):
        return f"spotguard{_extras(None, needed)} @ {_of_spotguard(said, text)}"
    named = _named("--package", said)
    if re.sub(r"[-_.]+", "-", named["name"].lower()) != "spotguard":
        raise UsageError(f"--package {said!r}: expected spotguard itself; --with names other packages")
    rest = (named["rest"] or "").strip()
    if rest.startswith("@"):
        rest = f" @ {_of_spotguard(said, rest[1:].strip())}"
    return f"{named['name']}{_extras(named['extras'], needed)}{rest}"


def others(said: list[str]) -> list[str]:
    """What the job needs besides, as it was said.

    Raises:
        UsageError: one is no requirement that the machine can fulfil.
    """
    for text in said:
        if _URL.match(text.strip()):
            _url("--with", text, text.strip())
        elif not text.startswith("/"):
            rest = _named("--with", text)["rest"] or ""
            if rest.startswith("@"):
                _url("--with", text, re.split(r"\s+;", rest[1:].strip())[0])  # a marker behind it
    return [text.strip() for text in said]


def index(url: str) -> str:
    """
    Raises:
        UsageError: no URL that is the same on every machine.
    """
    if not re.match(r"https?://[^/\s]|file:///", url) or re.search(r"\s", url):
        raise UsageError(
            f"--index {url!r}: expected an index's URL, as in https://pypi.example.org/simple or file:///srv/index"
        )
    return url


def _named(flag: str, said: str) -> re.Match[str]:
    text = said.strip()
    found = _NAMED.fullmatch(text)
    if found is None or (text.lower().endswith((".whl", ".gz", ".zip")) and "@" not in text):
        raise UsageError(
            f"{flag} {said!r}: expected a requirement as pip reads it, an URL, or a path on the machine from its root, as in "
            f"'spotguard==0.1.0', {_EXAMPLE} or /srv/spotguard-0.1.0-py3-none-any.whl"
        )
    return found


def _of_spotguard(said: str, url: str) -> str:
    _check_wheel(said, unquote(_url("--package", said, url).path))
    return url


def _url(flag: str, said: str, url: str) -> SplitResult:
    parts = urlsplit(url)
    if not (parts.netloc or (parts.scheme == "file" and parts.path.startswith("/"))) or re.search(r"\s", url):
        raise UsageError(
            f"{flag} {said!r}: expected a whole URL, the same on every machine, as in {_EXAMPLE}"
        )
    if parts.scheme not in _FETCHED and not _REPOSITORY.fullmatch(parts.scheme):
        raise UsageError(
            f"{flag} {said!r}: pip fetches nothing from {parts.scheme}://: have the image hold it, or give it a URL of https, as in {_EXAMPLE}"
        )
    # A file:// may be a folder. What a server has under another name may be anything, and is most often a page.
    if parts.scheme in ("https", "http") and not unquote(parts.path).lower().endswith(_INSTALLED):
        raise UsageError(
            f"{flag} {said!r}: at its end is no file that pip installs: name a wheel or an archive itself, as in {_EXAMPLE}, or a repository as "
            "in git+https://…"
        )
    return parts


def _check_wheel(said: str, path: str) -> None:
    name = path.rpartition("/")[2]
    if name.lower().endswith(".whl") and not _WHEEL.fullmatch(name):
        raise UsageError(
            f"--package {said!r}: pip takes a wheel by its whole name only, as in spotguard-0.1.0-py3-none-any.whl"
        )


def _extras(said: str | None, needed: Sequence[str]) -> str:
    """`[…]` with what was said and what is needed, once."""
    names = [name for name in re.split(r"[\s,]+", said or "") if name]
    there = {name.lower() for name in names}
    names += [name for name in needed if not {name, "all"} & there]
    return f"[{','.join(names)}]" if names else ""
