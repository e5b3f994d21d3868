"""Requirements for pip on the machine: spotguard itself, with the extras for the store's SDK and for metrics, and others.

spotguard is required in this version, or as `--package` names it. The forms are pip's ("Requirement Specifiers", PEP 508):
`spotguard[s3]==1.0` from an index, `spotguard[s3] @ URL`, `/path[s3]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

import spotguard
from spotguard.providers.errors import UsageError
from spotguard.providers.optional_deps import how_to_install
from spotguard.providers.stores.url import scheme_of

#: URL scheme -> the wheel's extra with that store's SDK.
EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}

EXAMPLE = "https://wheels.example.org/spotguard-0.1.0-py3-none-any.whl"
#: A name with its extras, and the rest: versions, a URL, a marker.
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[\w\s,.-]*)\])?\s*(?P<rest>[@=<>!~(;].*)?",
    re.ASCII,
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH_WITH_EXTRAS = re.compile(r"(?P<path>/.*?)(?:\[(?P<extras>[\w\s,.-]*)\])?")
#: The start of an option. In a requirements file, pip reads it as its own option and not as part of the requirement.
_OPTION = re.compile(r"\s-")
#: The `;` before a marker. A `;` without a blank beside it may belong to a URL.
_BEFORE_A_MARKER = re.compile(r"\s+;\s*|;\s+|;$")
#: A variable that pip replaces from its environment before it parses a line. Here it counts as a number.
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
#: File name of a spotguard wheel (PEP 427): pip takes the wheel's contents from its name.
_WHEEL = re.compile(r"spotguard-[^-/]+(?:-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl", re.IGNORECASE)

#: URL schemes that pip downloads files from.
_FETCHED = ("https", "http", "file")
#: URL schemes of repositories that pip clones (`git+https`). Such a URL may end in anything.
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+[a-z-]+")
#: The start of a path in the URL of a repository on the machine (`git+file:///`).
_NO_HOST = re.compile(r"(?<=\+file):///(?=[^/])", re.IGNORECASE)
#: File endings that pip installs from (its `filetypes`: "ARCHIVE_EXTENSIONS").
_INSTALLED = (
    ".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tlz", ".tar.lz", ".tar.lzma",
)  # fmt: skip


#: Paths of pages for a browser: a directory, or a file's page at a forge (even if that file is a wheel).
_PAGE = re.compile(r"/?|.*/|.*\.html?|.*/(?:tree|blob)/.*", re.IGNORECASE)
#: Hosts at which a repository's path and its files' paths are pages too.
_FORGES = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
_PAGE_OF_A_FORGE = re.compile(r"/[^/]+/[^/]+(?:/(?:-/)?(?:tree|blob)/.*)?")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one requirement. A part is "" if the requirement lacks it."""

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
            # Before 24.1, pip accepts `NAME @ URL` without a host only if it is a file URL (`packaging` before 22).
            text = f"{self.name}{extras} @ {_NO_HOST.sub('://localhost/', self.place)}"
        else:
            text = f"{self.place}{extras}"
        # Without a name, a `;` belongs to the place if no blank follows it. With a name, it does if no blank comes before it.
        between = " ; " if self.name else "; "
        return f"{text}{between}{self.marker}" if self.marker else text


def package(
    said: str | None, index: str, store: str, version: str = spotguard.__version__, *, metrics: bool = False
) -> str:
    """Return the requirement of spotguard itself.

    Args:
        said: the value of `--package`, or None.
        index: the value of `--index`, or "".
        store: the store's URL, which needs the extra with its SDK.
        version: the version of spotguard.
        metrics: whether to add the extra that `--metrics-port` needs.

    Raises:
        UsageError: `said` is no requirement, or the machine cannot find the package.
    """
    extra = EXTRAS.get(scheme_of(store), "")
    needed = [name for name in (extra, "metrics" if metrics else "") if name]
    if said is None:
        if ".dev" in version and not index:
            raise UsageError(
                f"--package is missing: this is {version}, a development version, which is in no index: pass where "
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
    """Return the requirements of the job's other packages, each as a line for pip.

    Raises:
        UsageError: a value is no requirement that pip on the machine can install.
    """
    read = [_read("--with", text) for text in said]
    return [parts.line(f"[{parts.extras}]" if parts.extras else "") for parts in read]


def index(url: str) -> str:
    """Return the URL of the package index unchanged.

    Raises:
        UsageError: `url` is no URL that is the same on every machine.
    """
    if not re.match(r"https?://[^/\s]|file:///", url) or re.search(r"\s", url):
        raise UsageError(
            f"--index {url!r}: expected an index's URL, as in https://pypi.example.org/simple or file:///srv/index"
        )
    return url


def of_an_index(line: str) -> bool:
    """Return whether a requirement is a name that pip looks up in an index."""
    match = _NAMED.fullmatch(line)
    return match is not None and not (match["rest"] or "").startswith("@")


def is_pinned(line: str) -> bool:
    """Return whether a requirement from an index has a fixed version."""
    match = _NAMED.fullmatch(line)
    return match is not None and re.match(r"[\s(]*==", match["rest"] or "") is not None


def unknown(line: str) -> str | None:
    """Return the URL in a requirement if its ending is none that pip installs; else None."""
    match = re.search(r"(?<!\+)https?://\S+", _BEFORE_A_MARKER.split(line)[0])
    return None if match is None or _is_file(urlsplit(match[0])) else match[0]


def _read(flag: str, requirement: str) -> _Parts:
    """Return the parts of a requirement.

    Args:
        flag: the flag that the requirement was passed to.
        requirement: the requirement as text.

    Raises:
        UsageError: pip would refuse the requirement, or drop a part of it.
    """
    text = requirement.strip()
    if not text.startswith("-") and _OPTION.search(text):
        raise UsageError(
            f"{flag} {requirement!r}: pip takes no option behind a requirement, and drops an index there: one index for all: --index, or the wheel's own URL"
        )
    if text.startswith("/"):
        place, _, marker = text.partition(";")
        match = _PATH_WITH_EXTRAS.fullmatch(place.strip())
        assert match is not None
        parts = _Parts("", match["extras"] or "", "", match["path"], marker.strip())
        is_one = ";" not in text or _is_requirement(flag, f"x;{marker}")
    elif _URL.match(text):
        parts, is_one = _placed(flag, "", "", text)
    else:
        named = _NAMED.fullmatch(text)
        # A relative path of a wheel has the form of a name, and pip would look up a package of that name.
        if named is None or (text.lower().endswith((".whl", ".gz", ".zip")) and "@" not in text):
            _refuse(flag, requirement)
        name, extras, rest = named["name"], named["extras"] or "", named["rest"] or ""
        if flag == "--package" and re.sub(r"[-_.]+", "-", name.lower()) != "spotguard":
            raise UsageError(
                f"--package {requirement!r}: expected spotguard itself; --with names other packages"
            )
        if rest.startswith("@"):
            parts, is_one = _placed(flag, name, extras, rest[1:].strip())
        else:
            versions, _, marker = (part.strip() for part in rest.partition(";"))
            parts = _Parts(name, extras, versions, "", marker)
            is_one = not rest or _is_requirement(flag, name + rest)
    if not is_one:
        _refuse(flag, requirement)
    if not text.startswith("/") and parts.place:
        _check_url(flag, requirement, parts.place)
    return parts


def _placed(flag: str, name: str, extras: str, text: str) -> tuple[_Parts, bool]:
    """Return the parts of a requirement at a URL, and whether its rest is a valid marker."""
    place, *markers = _BEFORE_A_MARKER.split(text, maxsplit=1)
    is_one = all(_is_requirement(flag, f"x;{marker}") for marker in markers)
    return _Parts(name, extras, "", place, "".join(markers)), is_one


def _is_requirement(flag: str, text: str) -> bool:
    """Return whether `text`, a name with versions or a marker, is a requirement (PEP 508).

    pip refuses any other text, but only on the machine, where nobody reads the error.

    Raises:
        UsageError: `packaging`, which pip itself uses, is not installed.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{flag}: versions and markers are checked by packaging, which is not installed here: "
            f"{how_to_install('bootstrap')}"
        ) from error
    try:
        Requirement(_VARIABLE.sub("0", text))
    except InvalidRequirement:
        return False
    return True


def _refuse(flag: str, requirement: str) -> NoReturn:
    raise UsageError(
        f"{flag} {requirement!r}: expected a requirement as pip reads it, a URL, or a path on the machine from its root, as in "
        f"'spotguard==0.1.0', {EXAMPLE} or /srv/spotguard-0.1.0-py3-none-any.whl"
    )


def _check_url(flag: str, requirement: str, url: str) -> None:
    parts = urlsplit(url)
    of_the_machine = _NO_HOST.search(url) or (parts.scheme == "file" and parts.path.startswith("/"))
    if not (parts.netloc or of_the_machine) or re.search(r"\s", url):
        raise UsageError(
            f"{flag} {requirement!r}: expected a whole URL, the same on every machine, as in {EXAMPLE}"
        )
    if parts.scheme not in _FETCHED and not _REPOSITORY.fullmatch(parts.scheme):
        raise UsageError(
            f"{flag} {requirement!r}: pip fetches nothing from {parts.scheme}://: have the image hold it, or give it a URL of https, as in {EXAMPLE}"
        )
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise UsageError(
            f"{flag} {requirement!r}: that names the machine {parts.netloc!r}, and pip reads files of its own only: a path begins behind three slashes, as in "
            "file:///srv/spotguard-0.1.0-py3-none-any.whl"
        )
    if parts.scheme in ("https", "http") and _is_page(parts):
        raise UsageError(
            f"{flag} {requirement!r}: at its end is no file that pip installs: name a wheel or an archive itself, as in {EXAMPLE}, or a repository as "
            "in git+https://…"
        )


def _is_page(url: SplitResult) -> bool:
    """Return whether a URL is certainly a page. At any other URL the server names the type of the file, and pip asks for it."""
    if url.hostname in _FORGES and "raw=" not in url.query and _PAGE_OF_A_FORGE.fullmatch(url.path):
        return True
    return not _is_file(url) and _PAGE.fullmatch(unquote(url.path)) is not None


def _is_file(url: SplitResult) -> bool:
    """Return whether a URL ends in a file ending that pip installs."""
    return unquote(url.path).lower().endswith(_INSTALLED)


def _check_wheel(requirement: str, path: str) -> None:
    name = path.rpartition("/")[2]
    if name.lower().endswith(".whl") and not _WHEEL.fullmatch(name):
        raise UsageError(
            f"--package {requirement!r}: pip takes a wheel by its whole name only, as in spotguard-0.1.0-py3-none-any.whl"
        )


def _extras(configured: str | None, needed: Sequence[str]) -> str:
    """Return `[…]` with the configured and the needed extras, each once; "" if there are none."""
    names = [name for name in re.split(r"[\s,]+", configured or "") if name]
    there = {name.lower() for name in names}
    names += [name for name in needed if not {name, "all"} & there]
    return f"[{','.join(names)}]" if names else ""
