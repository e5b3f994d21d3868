"""Syntax of version specifiers (PEP 440) and environment markers (PEP 508), which may follow a requirement's name.

pip refuses any other text, but only on the machine, where nobody reads the error. `packaging` would be one more dependency, and
spotguard needs only this part of it.
"""

from __future__ import annotations

import re

#: The forms of a version (PEP 440, "Appendix B"). A local version (+cu124) can only be tested for equality.
_RELEASE = (
    r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+){least,}"
    r"(?:[-_.]?(?:alpha|beta|preview|pre|a|b|c|rc)[-_.]?[0-9]*)?"
    r"(?:-[0-9]+|[-_.]?(?:post|rev|r)[-_.]?[0-9]*)?(?:[-_.]?dev[-_.]?[0-9]*)?"
)
_VERSION = _RELEASE.replace("{least,}", "*")
#: A version for `~=`, which needs two numbers at least because it lets the last one increase.
_TWO_PARTS = _RELEASE.replace("{least,}", "+")
_LOCAL = r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?"
_PREFIX = r"v?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*\.\*"
_CLAUSE = rf"\s*(?:===\s*[^\s,;)]+|(?:==|!=)\s*(?:{_PREFIX}|{_VERSION}{_LOCAL})|~=\s*{_TWO_PARTS}|(?:<=|>=|<|>)\s*{_VERSION})\s*"
_CLAUSES = re.compile(rf"{_CLAUSE}(?:,{_CLAUSE})*", re.IGNORECASE)

#: Variables of a marker (PEP 508, "Environment Markers"). Those with a dot are from PEP 345, and the last but one is from
#: setuptools. `packaging` accepts them all.
_VARIABLE = (
    r"(?:python_version|python_full_version|os[._]name|sys[._]platform|platform_(?:release|system)"
    r"|platform[._](?:version|machine|python_implementation)|implementation_(?:name|version)|python_implementation|extra)\b"
)
_TEXT = r"""(?:"[^"]*"|'[^']*')"""
_OPERATOR = r"(?:===|~=|==|!=|<=|>=|<|>|in\b|not\s+in\b)"
_COMPARED = rf"(?:{_VARIABLE}\s*{_OPERATOR}\s*(?:{_TEXT}|{_VARIABLE})|{_TEXT}\s*{_OPERATOR}\s*{_VARIABLE})"
_TERM = rf"[\s(]*{_COMPARED}[\s)]*"
_MARKER = re.compile(rf"{_TERM}(?:\b(?:and|or)\b{_TERM})*")
#: A variable that pip replaces from its environment before it parses a line.
_PUT_IN = re.compile(r"\$\{[A-Z0-9_]+\}")


def is_versions(text: str) -> bool:
    """Return whether `text` is a list of version specifiers, such as `==2.6` or `>=0.1, <1`, with or without parentheses.

    A variable that pip expands counts as a number.
    """
    expanded = _PUT_IN.sub("0", text).strip()
    if expanded.startswith("(") and expanded.endswith(")"):
        expanded = expanded[1:-1]
    return _CLAUSES.fullmatch(expanded) is not None


def is_marker(text: str) -> bool:
    """Return whether `text` is an environment marker, such as `python_version > '3.11' and (…)`."""
    if not _MARKER.fullmatch(text):
        return False
    depth = 0
    for bracket in re.findall(r"[()]", re.sub(_TEXT, "", text)):
        depth += 1 if bracket == "(" else -1
        if depth < 0:
            return False
    return depth == 0
