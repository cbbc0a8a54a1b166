"""Record batches of 60 records whose payload is several frames, as some stream writers frame it:

    gzip-3-members           three gzip members, one behind the other
    snappy-xerial-streams    two xerial streams
    zstd-3-frames            three zstd frames
    lz4-2-frames             two lz4 frames, of which Kafka reads the first

Apache Kafka 4.4.0 accepts all but the last, and its consumer reads 60 records of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

RECORDS: Final = 60
READABLE: Final = ("gzip-3-members", "snappy-xerial-streams", "zstd-3-frames")
TWO_LZ4_FRAMES: Final = "lz4-2-frames"


def framed_batch(name: str) -> bytes:
    return (Path(__file__).parent / f"{name}.bin").read_bytes()
