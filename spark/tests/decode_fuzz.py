"""Batches with a few bytes changed, thousands of them: decoders must agree, and no process may
crash.

    python -m spark.tests.decode_fuzz ROUNDS SEED [LIBRARY.so]

With a library, which should be built with an address sanitizer, only that library decodes, for
speed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from kbroker.formats.batches import HEADER_SIZE, LENGTH_END
from kbroker_spark import c_library, numpy_decoder
from kbroker_spark.arrow_columns import TYPES
from kbroker_spark.batch_groups import CorruptBatch, Group, groups
from kbroker_spark.c_decoder import CDecoder
from kbroker_spark.decode import DecodeGroup, choose
from spark.tests.record_batches import EVERYTHING, batch, record

_WIDTH = 40  # batches side by side, so that numpy steps through all of them together
_TELLING = (0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def fuzz(rounds: int, seed: int, *decoders: DecodeGroup) -> Counter[str]:
    """How many ended with rows and how many with an error. AssertionError if the decoders
    differ."""
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    models = [_model(chance) for _ in range(50)]
    beside = b"".join(batch([record(0), record(1)], 100 * (k + 1)) for k in range(_WIDTH))
    for _ in range(rounds):
        data = _changed(chance.choice(models), chance)
        if chance.random() < 0.1:
            data += beside
        first = chance.choice((0, 0, 0, 3))
        result, *others = [_outcome(data, first, decode_group) for decode_group in decoders]
        assert all(other == result for other in others), data.hex()
        ends["rows" if isinstance(result, list) else "complaints"] += 1
    return ends


def _model(chance: random.Random) -> bytes:
    def some_bytes() -> bytes | None:
        return chance.choice((None, b"", b"k", chance.randbytes(chance.randrange(100))))

    def some_headers() -> list[tuple[bytes | None, bytes | None]]:
        return [(some_bytes(), some_bytes()) for _ in range(chance.choice((0, 0, 1, 3)))]

    records = [
        record(i, some_bytes(), some_bytes(), time_delta=chance.randrange(-99, 9999), headers=some_headers())
        for i in range(chance.randrange(1, 8))
    ]
    return batch(records, attributes=chance.choice((0, 8)))


def _changed(data: bytes, chance: random.Random) -> bytes:
    """Records changed, truncated or extended; the batch's length is right, its CRC is not checked.
    Sometimes its header is changed as well."""
    found = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        at = chance.randrange(HEADER_SIZE, len(found))
        found[at] = chance.choice((*_TELLING, chance.randrange(256), found[at] ^ (1 << chance.randrange(8))))
    if chance.random() < 0.1:
        del found[chance.randrange(HEADER_SIZE, len(found)) :]
    if chance.random() < 0.1:
        at = chance.randrange(HEADER_SIZE, len(found) + 1)
        found[at:at] = bytes([chance.choice(_TELLING)]) * chance.randrange(1, 12)
    found[8:LENGTH_END] = (len(found) - LENGTH_END).to_bytes(4, "big")
    if chance.random() < 0.1:
        found[chance.choice((23, 24, 25, 26, *range(27, 43), 57, 58, 59, 60))] = chance.choice(_TELLING)
    return bytes(found)


def _outcome(data: bytes, first: int, decode_group: DecodeGroup) -> list[dict[str, pa.Array]] | str:
    found = []
    try:
        for group in groups([memoryview(data)], first=first, end=EVERYTHING, check_crc=False):
            rows, arrays = decode_group(_of_its_own(group), first, EVERYTHING, tuple(TYPES))
            for name, array in arrays.items():
                array.validate(full=True)
                assert (len(array), array.type) == (rows, TYPES[name])
            found.append(arrays)
    except CorruptBatch as error:
        return str(error)
    return found


def _of_its_own(group: Group) -> Group:
    """In memory that ends with the records, so that a sanitizer detects every read beyond them (a
    bytearray has one byte more)."""
    begin, end = int(group.starts[0]), int(group.ends[-1])
    exact = np.array(group.data[begin:end])
    return Group(memoryview(exact), group.starts - begin, group.ends - begin, group.headers)


def main(rounds: str, seed: str, library: str = "") -> None:
    decoders = (
        (CDecoder(c_library.load(Path(library))).decode_group,)
        if library
        else (numpy_decoder.decode_group, choose("c"))
    )
    print(dict(fuzz(int(rounds), int(seed), *decoders)))


if __name__ == "__main__":
    main(*sys.argv[1:])
