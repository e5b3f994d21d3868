"""What may stand behind a requirement's name: versions as PEP 440 writes them, and a marker as PEP 508 does.

pip refuses anything else, on the machine, where nobody reads it. No more than this is needed of `packaging`, which would be one more dependency.
"""

from __future__ import annotations

import re

#: PEP 440, "Appendix B": a version as it may be written. What is local (+cu124) can only be equal.
_RELEASE = (
    r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+){least,}"
    r"(?:[-_.]?(?:alpha|beta|preview|pre|a|b|c|rc)[-_.]?[0-9]*)?"
    r"(?:-[0-9]+|[-_.]?(?:post|rev|r)[-_.]?[0-9]*)?(?:[-_.]?dev[-_.]?[0-9]*)?"
)
_VERSION = _RELEASE.replace("{least,}", "*")
#: `~=` takes two numbers at least: it lets the last one move.
_TWO_PARTS = _RELEASE.replace("{least,}", "+")
_LOCAL = r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?"
_PREFIX = r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*\.\*"
_CLAUSE = rf"\s*(?:===\s*[^\s,;)]+|(?:==|!=)\s*(?:{_PREFIX}|{_VERSION}{_LOCAL})|~=\s*{_TWO_PARTS}|(?:<=|>=|<|>)\s*{_VERSION})\s*"
_CLAUSES = re.compile(rf"{_CLAUSE}(?:,{_CLAUSE})*", re.IGNORECASE)

#: PEP 508, "Environment Markers"; those with a dot are PEP 345's, and the last but one is setuptools': `packaging` knows them all.
_VARIABLE = (
    r"(?:python_version|python_full_version|os[._]name|sys[._]platform|platform_(?:release|system)"
    r"|platform[._](?:version|machine|python_implementation)|implementation_(?:name|version)|python_implementation|extra)\b"
)
_TEXT = r"""(?:"[^"]*"|'[^']*')"""
_OPERATOR = r"(?:===|~=|==|!=|<=|>=|<|>|in\b|not\s+in\b)"
_COMPARED = rf"(?:{_VARIABLE}\s*{_OPERATOR}\s*(?:{_TEXT}|{_VARIABLE})|{_TEXT}\s*{_OPERATOR}\s*{_VARIABLE})"
_TERM = rf"[\s(]*{_COMPARED}[\s)]*"
_MARKER = re.compile(rf"{_TERM}(?:\b(?:and|or)\b{_TERM})*")
#: What pip puts in from its environment before it reads a line.
_PUT_IN = re.compile(r"\$\{[A-Z0-9_]+\}")


def is_versions(text: str) -> bool:
    """`==2.6`, `>=0.1, <1`; in parentheses, too. Where pip puts a variable in, that may be a number."""
    said = _PUT_IN.sub("0", text).strip()
    if said.startswith("(") and said.endswith(")"):
        said = said[1:-1]
    return _CLAUSES.fullmatch(said) is not None


def is_marker(text: str) -> bool:
    """`python_version > '3.11' and (…)`."""
    if not _MARKER.fullmatch(text):
        return False
    depth = 0
    for bracket in re.findall(r"[()]", re.sub(_TEXT, "", text)):
        depth += 1 if bracket == "(" else -1
        if depth < 0:
            return False
    return depth == 0
