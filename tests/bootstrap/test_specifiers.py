"""Versions and markers: what is taken is what `packaging`, and so pip, takes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from spotguard.bootstrap import specifiers
from tests.cases import cases


@pytest.mark.parametrize(
    "text",
    ["==0.1.0", ">=0.1,<1", " ~= 0.1.2 , != 0.1.3", "==2.*", "!=1.2.*", "==2.6.0+cu124", "===any_thing", "(>=0.1)", "<3.0rc1", "==1!2.0.post1.dev0"],
)  # fmt: skip
def test_versions_of_pep_440_are_versions(text: str) -> None:
    SpecifierSet(text.strip("()"))
    assert specifiers.is_versions(text)


@cases(
    "text", ["", "=2.6", "==", "~0.1", ">>1", "~=1", ">=1.*", ">=1+cu1", "==1,", ",==1", "==1 ==2", "==1;", "==a", "(==1", "==1)", "@1"]
)  # fmt: skip
def test_what_only_looks_like_versions_is_none(text: str) -> None:
    assert not specifiers.is_versions(text)


def test_a_variable_of_pips_may_be_a_version() -> None:
    assert specifiers.is_versions("==${TORCH}")
    assert specifiers.is_versions("==2.6+${CUDA}")
    assert not specifiers.is_versions("=${TORCH}")


@pytest.mark.parametrize(
    "text",
    [
        'python_version>"3.8"',
        " sys_platform == 'linux' and (platform_machine in 'x86_64 aarch64' or '3.12' <= python_version) ",
        "platform_machine not in 'arm64'",
        "((os_name == 'posix'))",
        "os_name == ')'",
        "os.name == 'posix' and sys.platform == 'linux' and platform.machine != 'arm64'",
        "platform.version > '1' and platform.python_implementation == python_implementation",
    ],
)
def test_a_marker_of_pep_508_is_one(text: str) -> None:
    Marker(text)
    assert specifiers.is_marker(text)


@pytest.mark.parametrize(
    "text", ["", "rm", "python > '3'", "python_version", "python_version > 3", "python_version > '3", "(os_name == 'x'", "os_name == 'x')", "os_name == 'x' or", "os_name = 'x'", "osxname == 'x'", "sys.platforms == 'x'", "platform.system == 'x'"]
)  # fmt: skip
def test_what_only_looks_like_a_marker_is_none(text: str) -> None:
    with pytest.raises(InvalidMarker):
        Marker(text)
    assert not specifiers.is_marker(text)


_PIECES = st.sampled_from(["==", "===", "~=", ">=", "<", "!=", "=", ">", "1", "2.6", ".*", "+cu1", "rc1", ".dev0", ",", " ", "a", "-", "!"])  # fmt: skip
_WORDS = st.sampled_from(["python_version", "os_name", "os.name", "python_implementation", "'3'", '"x"', "==", ">", " ", "in", "not in", "and", "or", "(", ")", "extra", ";"])  # fmt: skip


@given(st.lists(_PIECES, max_size=7).map("".join))
def test_no_versions_are_taken_that_pip_refuses(text: str) -> None:
    if specifiers.is_versions(text):
        with contextlib.suppress(InvalidSpecifier):
            SpecifierSet(text)
            return
        pytest.fail(f"{text!r} is none of packaging's")


@given(st.lists(_WORDS, max_size=9).map("".join))
def test_no_marker_is_taken_that_pip_refuses(text: str) -> None:
    if specifiers.is_marker(text):
        with contextlib.suppress(InvalidMarker):
            Marker(text)
            return
        pytest.fail(f"{text!r} is none of packaging's")
