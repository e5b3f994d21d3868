"""CRCs of parts make the CRC of the whole."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.format.crc import combine


@given(parts=st.lists(st.binary(max_size=300), max_size=8))
def test_the_whole_follows_from_its_parts(parts: list[bytes]) -> None:
    """As zlib takes it of all the bytes, empty parts among them."""
    assert combine((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def test_a_large_part_follows_a_small_one() -> None:
    """A header, and an odd number of bytes behind it."""
    head, tail = b"header", b"\0" * (3 * 2**20 + 1)
    assert combine([(zlib.crc32(head), len(head)), (zlib.crc32(tail), len(tail))]) == zlib.crc32(head + tail)
