"""What pip is given on the machine: this version or what was said, with the extras for the store's SDK and for metrics.

pip's own forms (its "Requirement Specifiers", PEP 508): `spotguard[s3]==1.0` of an index, `spotguard[s3] @ URL`, `/path[s3]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

import spotguard
from spotguard.providers.errors import UsageError

from .specifiers import is_marker, is_versions

#: The extra of the wheel that has each store's SDK.
EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}

EXAMPLE = "https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl"
#: A name and its extras, and what may follow it: versions, a place, a marker.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[\w\s,.-]*)\])?\s*(?P<rest>[@=<>!~(;].*)?",
    re.ASCII,
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH_WITH_EXTRAS = re.compile(r"(?P<path>/.*?)(?:\[(?P<extras>[\w\s,.-]*)\])?")
#: In a file of requirements, what stands here is pip's own option and no part of the requirement.
_OPTION = re.compile(r"\s-")
#: A `;` may belong to a URL: the marker's has a blank beside it.
_BEFORE_A_MARKER = re.compile(r"\s+;\s*|;\s+|;$")
#: PEP 427: by its file name pip knows what a wheel holds.
_WHEEL = re.compile(r"spotguard-[^-/]+(?:-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl", re.IGNORECASE)

#: What pip fetches by itself; and from repositories (`git+https`), whose URLs end as they like.
_FETCHED = ("https", "http", "file")
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+[a-z-]+")
#: Of a repository on the machine.
_NO_HOST = re.compile(r"(?<=\+file):///(?=[^/])", re.IGNORECASE)
#: What pip installs from ("ARCHIVE_EXTENSIONS" of its filetypes).
_INSTALLED = (
    ".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tlz", ".tar.lz", ".tar.lzma",
)  # fmt: skip


#: What a browser is shown: a folder, a file's page at a forge (whatever that file is), a repository's own.
_PAGE = re.compile(r"/?|.*/|.*\.html?|.*/(?:tree|blob)/.*", re.IGNORECASE)
_FORGES = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
_PAGE_OF_A_FORGE = re.compile(r"/[^/]+/[^/]+(?:/(?:-/)?(?:tree|blob)/.*)?")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What one line of requirements says; each "" where it says nothing of it."""

    name: str
    extras: str
    versions: str
    #: A URL, or a path on the machine.
    place: str
    marker: str

    def line(self, extras: str) -> str:
        if not self.place:
            text = f"{self.name}{extras}{self.versions}"
        elif self.name:
            # Until 24.1 pip takes no URL behind a name without a host, but that of a file (`packaging` before 22).
            text = f"{self.name}{extras} @ {_NO_HOST.sub('://localhost/', self.place)}"
        else:
            text = f"{self.place}{extras}"
        # Bare, a `;` belongs to the place if no blank follows it, and with a name if none stands before.
        between = " ; " if self.name else "; "
        return f"{text}{between}{self.marker}" if self.marker else text


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
                f"the machine finds a wheel of it, as in --package {EXAMPLE}, or --index with an index of your own"
            )
        return f"spotguard{_extras(None, needed)}=={version}"
    parts = _read("--package", said)
    _check_wheel(said, unquote(urlsplit(parts.place).path) if _URL.match(parts.place) else parts.place)
    extras = _extras(parts.extras, needed)
    if _URL.match(parts.place):
        return replace(parts, name=parts.name or "spotguard").line(extras)
    return parts.line(extras)


def others(said: list[str]) -> list[str]:
    """What the job needs besides, each as a line for pip.

    Raises:
        UsageError: one is no requirement that the machine can fulfil.
    """
    read = [_read("--with", text) for text in said]
    return [parts.line(f"[{parts.extras}]" if parts.extras else "") for parts in read]


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


def of_an_index(line: str) -> bool:
    """Whether a line is a name that an index is asked for."""
    found = _NAMED.fullmatch(line)
    return found is not None and not (found["rest"] or "").startswith("@")


def is_pinned(line: str) -> bool:
    """Whether a name of an index has its version with it."""
    found = _NAMED.fullmatch(line)
    return found is not None and re.match(r"[\s(]*==", found["rest"] or "") is not None


def unknown(line: str) -> str | None:
    """The URL in a line, where it does not end as something that pip installs."""
    found = re.search(r"(?<!\+)https?://\S+", _BEFORE_A_MARKER.split(line)[0])
    return None if found is None or _is_file(urlsplit(found[0])) else found[0]


def _read(flag: str, said: str) -> _Parts:
    """
    Raises:
        UsageError: pip would not take it, or not all of it.
    """
    text = said.strip()
    if not text.startswith("-") and _OPTION.search(text):
        raise UsageError(
            f"{flag} {said!r}: pip takes no option behind a requirement, and drops an index there: one index for all: --index, or the wheel's own URL"
        )
    if text.startswith("/"):
        place, _, marker = text.partition(";")
        found = _PATH_WITH_EXTRAS.fullmatch(place.strip())
        assert found is not None
        parts = _Parts("", found["extras"] or "", "", found["path"], marker.strip())
        is_one = ";" not in text or is_marker(marker)
    elif _URL.match(text):
        parts, is_one = _placed("", "", text)
    else:
        named = _NAMED.fullmatch(text)
        # A wheel here, which would be a package of that name.
        if named is None or (text.lower().endswith((".whl", ".gz", ".zip")) and "@" not in text):
            _refuse(flag, said)
        name, extras, rest = named["name"], named["extras"] or "", named["rest"] or ""
        if flag == "--package" and re.sub(r"[-_.]+", "-", name.lower()) != "spotguard":
            raise UsageError(f"--package {said!r}: expected spotguard itself; --with names other packages")
        if rest.startswith("@"):
            parts, is_one = _placed(name, extras, rest[1:].strip())
        else:
            versions, semicolon, marker = (part.strip() for part in rest.partition(";"))
            parts = _Parts(name, extras, versions, "", marker)
            is_one = (not versions or is_versions(versions)) and (not semicolon or is_marker(marker))
    if not is_one:
        _refuse(flag, said)
    if not text.startswith("/") and parts.place:
        _check_url(flag, said, parts.place)
    return parts


def _placed(name: str, extras: str, text: str) -> tuple[_Parts, bool]:
    """At a URL; and whether what follows that is a marker."""
    place, *markers = _BEFORE_A_MARKER.split(text, maxsplit=1)
    return _Parts(name, extras, "", place, "".join(markers)), all(map(is_marker, markers))


def _refuse(flag: str, said: str) -> NoReturn:
    raise UsageError(
        f"{flag} {said!r}: expected a requirement as pip reads it, an URL, or a path on the machine from its root, as in "
        f"'spotguard==0.1.0', {EXAMPLE} or /srv/spotguard-0.1.0-py3-none-any.whl"
    )


def _check_url(flag: str, said: str, url: str) -> None:
    parts = urlsplit(url)
    of_the_machine = _NO_HOST.search(url) or (parts.scheme == "file" and parts.path.startswith("/"))
    if not (parts.netloc or of_the_machine) or re.search(r"\s", url):
        raise UsageError(f"{flag} {said!r}: expected a whole URL, the same on every machine, as in {EXAMPLE}")
    if parts.scheme not in _FETCHED and not _REPOSITORY.fullmatch(parts.scheme):
        raise UsageError(
            f"{flag} {said!r}: pip fetches nothing from {parts.scheme}://: have the image hold it, or give it a URL of https, as in {EXAMPLE}"
        )
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"{flag} {said!r}: that names the machine {parts.netloc!r}, and pip reads files of its own only: a path begins behind three slashes, as in "
            "file:///srv/spotguard-0.1.0-py3-none-any.whl"
        )
    if parts.scheme in ("https", "http") and _is_page(parts):
        raise UsageError(
            f"{flag} {said!r}: at its end is no file that pip installs: name a wheel or an archive itself, as in {EXAMPLE}, or a repository as "
            "in git+https://…"
        )


def _is_page(url: SplitResult) -> bool:
    """Plainly one. What a server has under any other name is what it says that it is: pip asks it."""
    if url.hostname in _FORGES and "raw=" not in url.query and _PAGE_OF_A_FORGE.fullmatch(url.path):
        return True
    return not _is_file(url) and _PAGE.fullmatch(unquote(url.path)) is not None


def _is_file(url: SplitResult) -> bool:
    """Whether it ends as something that pip installs."""
    return unquote(url.path).lower().endswith(_INSTALLED)


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
