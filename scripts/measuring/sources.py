"""The sources of a working tree or of a revision, their rooms, and their lines by kind."""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Path in the repository -> text.
Sources = Mapping[str, str]

#: The folders of what is installed, which CONTRIBUTING.md describes under "The layout", and all that are counted.
INSTALLED = ("packaging/spotguard/", "agent/", "hooks/", "providers/")
_TOPS = (*INSTALLED, "benchmarks/", "scripts/", "tests/")
#: A room is one level below these. Below the others all files are one room.
_DIVIDED = ("tests/hooks", "packaging/spotguard", "agent", "hooks", "providers", "tests")
KINDS = ("code", "docstring", "comment", "blank")


def working_tree(root: Path) -> Sources:
    """Return the sources below `root` that git does not ignore, committed or not."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_TOPS)
    paths = [name for name in listed.decode().split("\0") if name]
    # A link leads to a room that is counted at the root; a deleted file is listed until it is staged.
    kept = [name for name in paths if (path := root / name).is_file() and not _is_link(root, path)]
    return dict(_sources((name, (root / name).read_bytes()) for name in kept))


def revision(root: Path, name: str) -> Sources:
    """Return the sources of a revision. The working tree stays as it is."""
    there = [top for top in _TOPS if _git(root, "ls-tree", name, top.rstrip("/"))]
    packed = _git(root, "archive", "--format=tar", name, *there)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [(each.name, archive.extractfile(each)) for each in archive if each.isreg()]
        return dict(_sources((path, file.read()) for path, file in files if file is not None))


def _sources(files: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield the Python files and all scripts, as text."""
    for name, data in files:
        if name.endswith(".py") or name.startswith("scripts/"):
            yield name, data.decode()


def _is_link(root: Path, path: Path) -> bool:
    return any(each.is_symlink() for each in (path, *path.parents) if each != root and root in each.parents)


def _git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True).stdout


def room(path: str) -> str:
    """Return the room of a file: `hooks/save`; `hooks` for a file beside the rooms of the hooks."""
    for top in _DIVIDED:
        if path.startswith(f"{top}/"):
            below, deeper, _ = path.removeprefix(f"{top}/").partition("/")
            return f"{top}/{below}" if deeper else top
    return path.partition("/")[0]


def trees(sources: Sources, *tops: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the syntax trees of the Python sources below `tops`; without any, below the folders of what is installed."""
    for path, text in sorted(sources.items()):
        if path.startswith(tops or INSTALLED) and is_python(path, text):
            yield path, ast.parse(text, path)


def is_python(path: str, text: str) -> bool:
    return path.endswith(".py") or "python" in text.partition("\n")[0]


def lines_by_room(sources: Sources) -> dict[str, Counter[str]]:
    """Return the number of lines of each kind, by room. A shell script has code, comments and blank lines."""
    rooms: dict[str, Counter[str]] = {}
    for path, text in sources.items():
        rooms.setdefault(room(path), Counter()).update(lines(text, python=is_python(path, text)))
    return rooms


def lines(text: str, *, python: bool = True) -> Counter[str]:
    """Return the number of lines of each kind of `KINDS`. A line with code and a comment is code."""
    kinds = [
        "blank" if not line.strip() else "comment" if _is_comment(line) else "code"
        for line in text.splitlines()
    ]
    for first, last, kind in _strings(ast.parse(text)) if python else ():
        kinds[first - 1 : last] = [kind] * (last - first + 1)
    return Counter(kinds)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _strings(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Yield the lines and the kind of each text that is a statement, and of other texts, which are code on all their lines."""
    docstrings = set[ast.expr]()
    for node in ast.walk(tree):  # a statement comes before its expression
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                docstrings.add(text)
                yield text.lineno, text.end_lineno or text.lineno, "docstring"
            case ast.JoinedStr() | ast.Constant(value=str() | bytes()):
                last = node.end_lineno or node.lineno
                if node not in docstrings and last > node.lineno:
                    yield node.lineno, last, "code"
