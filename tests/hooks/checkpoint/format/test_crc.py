"""CRCs of parts make the CRC of the whole."""

from __future__ import annotations

import sys
import zlib
from importlib.util import find_spec, module_from_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.crc import combine, crc32


@given(parts=st.lists(st.binary(max_size=300), max_size=8))
def test_the_whole_follows_from_its_parts(parts: list[bytes]) -> None:
    """As zlib takes it of all the bytes, empty parts among them."""
    assert combine((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def test_a_large_part_follows_a_small_one() -> None:
    """A header, and an odd number of bytes behind it."""
    head, tail = b"header", b"\0" * (3 * 2**20 + 1)
    assert combine([(zlib.crc32(head), len(head)), (zlib.crc32(tail), len(tail))]) == zlib.crc32(head + tail)


@given(data=st.binary(max_size=10_000), before=st.binary(max_size=100))
def test_the_fast_one_is_zlibs(data: bytes, before: bytes) -> None:
    """Of any buffer, and going on from what came before."""
    assert crc32(memoryview(bytearray(data)), zlib.crc32(before)) == zlib.crc32(before + data)


def test_without_its_wheel_crc32_is_zlibs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    spec = find_spec("spotguard.hooks.checkpoint.format.crc")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.crc32 is zlib.crc32
