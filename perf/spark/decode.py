"""Records per second that one core decodes into Arrow columns, with numpy and with the C helper.

    python -m perf.spark.decode                    a minute or two; --write puts the result into
                                                   perf/results

Works without Spark: decodes batches in memory, as a data source's worker has them after reading 4
MiB, into Arrow arrays of all columns except headers, with CRC checks. It measures the CPU time of
the process, which other work on the machine affects less than elapsed time. Records have keys of 10
bytes and values of 100 bytes of random words. A producer with default settings fills batches of 16
KiB. Every round measures all cases.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import click

from kbroker.formats.batches import Record, build_batch, stamp
from kbroker.formats.compression import Codec
from kbroker_spark.decode import Decoder, decode
from perf.spark.report import RESULTS, machine, page, spread, write

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")
GOAL = 2.0
"""Million records per second and core, for batches of 16 KiB."""

_CHUNK_BYTES = 4 << 20
_DECODERS: tuple[Decoder, ...] = ("numpy", "c")


class Case(NamedTuple):
    name: str
    batch_records: int
    codec: Codec = Codec.NONE
    columns: Sequence[str] = COLUMNS


CASES = (
    Case("16 KiB, plain", 136),
    Case("16 KiB, plain, offset and value", 136, columns=("offset", "value")),
    Case("1 record, plain", 1),
    Case("3 records, plain", 3),
    Case("1 MB, plain", 8_000),
    Case("16 KiB, gzip", 136, Codec.GZIP),
    Case("16 KiB, snappy", 136, Codec.SNAPPY),
    Case("16 KiB, lz4", 136, Codec.LZ4),
    Case("16 KiB, zstd", 136, Codec.ZSTD),
)
_WORDS = (
    "order",
    "paid",
    "ready",
    "kitchen",
    "table",
    "guest",
    "cold",
    "hot",
    "soup",
    "bread",
    "seven",
    "never",
    "maybe",
    "refund",
    "river",
)


@click.command()
@click.option("--records", default=300_000, show_default=True, help="Number of records in each case.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--write", "is_written", is_flag=True, help="Put the result into perf/results.")
def main(records: int, rounds: int, is_written: bool) -> None:
    """Measure the decoding rates of both decoders."""
    chunks = {case.name: _chunks(case, records) for case in CASES}
    rates: dict[tuple[str, Decoder], list[float]] = {
        (case.name, decoder): [] for case in CASES for decoder in _DECODERS
    }
    for number in range(rounds + 1):
        for case in CASES:
            for decoder in _DECODERS:
                rate = _rate(chunks[case.name], case, decoder)
                if number:  # the first round is for warming up
                    rates[case.name, decoder].append(rate)
    facts = machine("pyarrow", "numpy", "crc32c", "cramjam", "zstandard")
    about = [
        (__doc__ or "").splitlines()[0],
        "Million records per second and core: median, lowest and highest.",
    ]
    rows = [("batches", "numpy", "C")]
    rows += [(case.name, *(spread(rates[case.name, decoder]) for decoder in _DECODERS)) for case in CASES]
    met = {decoder: median(rates[CASES[0].name, decoder]) >= GOAL for decoder in _DECODERS}
    after = [
        f"Goal: {GOAL:.0f} with batches of 16 KiB: "
        + ", ".join(f"{name} {'met' if is_met else 'MISSED'}" for name, is_met in met.items())
    ]
    text = page("Decoding record batches", about, facts, rows, after)
    print(text)
    if is_written:
        readings = [
            {"case": name, "decoder": decoder, "million_records_per_s": rate}
            for (name, decoder), rate in rates.items()
        ]
        write(
            RESULTS,
            "spark-decode",
            {"machine": facts, "readings": readings, "goal": GOAL, "goal_met": met},
            text,
        )


def _chunks(case: Case, records: int) -> list[memoryview]:
    chance = random.Random(1)
    kinds = [_batch(case, chance) for _ in range(max(1, min(50, 50_000 // case.batch_records)))]
    chunks, chunk = [], bytearray()
    for number in range(records // case.batch_records):
        batch = bytearray(kinds[number % len(kinds)])
        stamp(batch, base_offset=number * case.batch_records, leader_epoch=0)
        if chunk and len(chunk) + len(batch) > _CHUNK_BYTES:
            chunks.append(memoryview(bytes(chunk)))
            chunk.clear()
        chunk += batch
    return [*chunks, memoryview(bytes(chunk))]


def _batch(case: Case, chance: random.Random) -> bytes:
    return build_batch(
        [
            Record(0, 1_700_000_000_000 + i, b"key%07d" % chance.randrange(10**7), value(chance))
            for i in range(case.batch_records)
        ],
        codec=case.codec,
    )


def value(chance: random.Random) -> bytes:
    """100 bytes of words."""
    return " ".join(chance.choices(_WORDS, k=30)).encode()[:100]


def _rate(chunks: Sequence[memoryview], case: Case, decoder: Decoder) -> float:
    began = time.process_time()
    rows = sum(
        piece.rows for piece in decode(chunks, first=0, end=1 << 60, columns=case.columns, decoder=decoder)
    )
    return rows / (time.process_time() - began) / 1e6


if __name__ == "__main__":
    main()
