"""Frames from received bytes, in pieces of any size."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.frames import BadFrame, FrameReader


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 250), max_size=8))
def test_however_the_bytes_are_cut_the_frames_are_the_same(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies)
    reader = FrameReader(100)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    got = [
        bytes(frame) for begin, end in pairwise(edges) for frame in reader.feed(memoryview(stream[begin:end]))
    ]
    assert got == bodies
    assert reader.expected_bytes == 0


def test_only_a_frame_that_came_in_pieces_may_be_written_to() -> None:
    """The next receive overwrites the shared buffer, so a slice of it must not pass as owned."""
    received = bytearray(framed(b"whole", b"in pieces"))
    reader = FrameReader(100)
    (whole,) = reader.feed(memoryview(received)[:15])
    assert (bytes(whole), whole.readonly) == (b"whole", True)
    (pieced,) = reader.feed(memoryview(received)[15:])
    assert (bytes(pieced), pieced.readonly) == (b"in pieces", False)
    received[:] = bytes(len(received))
    assert bytes(pieced) == b"in pieces"


@pytest.mark.parametrize("size", [0, -1, 101])
def test_a_size_that_cannot_be_is_refused_behind_the_frames_before_it(size: int) -> None:
    frames = FrameReader(100).feed(memoryview(framed(b"good") + struct.pack(">i", size)))
    assert bytes(next(frames)) == b"good"
    with pytest.raises(BadFrame, match=f"frame size {size} "):
        next(frames)
