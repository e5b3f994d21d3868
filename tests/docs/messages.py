"""Every message that the code can show to a person, found by reading the code: who adds one is asked to explain it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("agent", "hooks", "providers", "packaging/spotguard")

#: Raised for a person to read. (`ProtocolError` and `Invalid` speak to other parts of the program.)
ERRORS = frozenset(
    {
        "Abandoned",
        "AgentError",
        "CheckpointError",
        "CommandError",
        "CorruptError",
        "DeadSocketError",
        "DeniedError",
        "FullError",
        "MisconfiguredError",
        "NotFoundError",
        "NotSupportedError",
        "Partial",
        "ProveError",
        "SpotguardError",
        "StateError",
        "StoreError",
        "ThrottledError",
        "UnavailableError",
        "UnsupportedFormatError",
        "UsageError",
        "refused",
    }
)
LEVELS = frozenset({"warning", "error", "exception", "critical"})


@dataclass(frozen=True, slots=True)
class Message:
    """One place in the code that says something to a person."""

    place: str
    #: What is fixed in it, piece after piece; between two of them stands a value.
    pieces: tuple[str, ...]

    @property
    def words(self) -> str:
        """The part by which it can be found: its first piece of three words or more, cut after the sixth."""
        pieces = [_trimmed(piece) for piece in self.pieces]
        long = next((piece for piece in pieces if len(piece.split()) >= 3), "")
        return " ".join((long or max(pieces, key=len, default="")).split()[:6])


@cache
def messages() -> tuple[Message, ...]:
    """All of them, in the order of files and lines."""
    return tuple(
        message
        for path, text in sources().items()
        for message in messages_in(ast.parse(text), path.relative_to(ROOT).as_posix())
    )


@cache
def sources() -> dict[Path, str]:
    """The text of each module, in the order of rooms and files."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {path: path.read_text() for path in paths if not _through_a_link(path)}


def _through_a_link(path: Path) -> bool:
    """The links in packaging/spotguard lead to rooms that are read already."""
    return any(parent.is_symlink() for parent in path.parents if parent != ROOT and ROOT in parent.parents)


def messages_in(tree: ast.AST, file: str) -> Iterator[Message]:
    """Those of one module."""
    nodes = list(ast.walk(tree))
    named = _named(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and (argument := _said(node)) is not None:
            yield Message(f"{file}:{node.lineno}", tuple(_pieces(argument, named)))


def _named(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """What a name may stand for: advice is often kept in one."""
    named: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
    return named


def _said(call: ast.Call) -> ast.expr | None:
    """The argument that is the message, where this call says something to a person."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    place = 0
    if isinstance(call.func, ast.Attribute):
        if name in ("_log", "log") and "WARNING" not in ast.unparse(call):
            return None
        if name not in ("_log", "log") and name not in LEVELS:
            return None
    elif name in ("blind", "refuse", "refusal"):
        place = 2
    elif name == "wrong_server":
        place = 1
    elif name not in ERRORS:
        return None
    return call.args[place] if len(call.args) > place else None


def _pieces(node: ast.expr, named: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The fixed text, with a break wherever a value stands."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.split(r"%[0-9.]*[a-z]|\{\w+\}", node.value)  # what logging and str.format fill in
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value, named) if isinstance(value, ast.Constant) else ("",)
    elif isinstance(node, ast.BinOp):
        yield from (*_pieces(node.left, named), *_pieces(node.right, named))
    elif isinstance(node, ast.IfExp):
        yield from (*_pieces(node.body, named), *_pieces(node.orelse, named))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from _pieces(node.func.value, named)
    elif isinstance(node, ast.Name):
        for value in named.pop(node.id, []):  # once: a name may be made from itself
            yield from _pieces(value, named)
            named.setdefault(node.id, []).append(value)


def _trimmed(piece: str) -> str:
    return piece.strip(" \t\n:;,.'\"()[]`")


if __name__ == "__main__":  # what a page of errors must hold
    for message in messages():
        print(f"{message.place:45} {message.words}")
