"""Settings of the codec in which batches are stored: a topic's own, and the broker's defaults."""

from __future__ import annotations

from typing import Final

from .definition import ConfigDef, ConfigType, Value

COMPRESSION_TYPE: Final = "compression.type"
PRODUCER: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"
_CHOICES = (UNCOMPRESSED, "zstd", "lz4", "snappy", "gzip", PRODUCER)
GZIP_LEVEL: Final = "compression.gzip.level"
LZ4_LEVEL: Final = "compression.lz4.level"
ZSTD_LEVEL: Final = "compression.zstd.level"
_GZIP_DEFAULT, _GZIP_MOST = -1, 9


def _gzip_fault(value: Value) -> str | None:
    return None if value else f"Value must be between 1 and {_GZIP_MOST} or equal to {_GZIP_DEFAULT}"


def _settings(*, of_topic: bool) -> tuple[ConfigDef, ...]:
    def synonyms(name: str) -> tuple[tuple[str, int], ...]:
        return ((name, 1),) if of_topic else ()

    default = "" if of_topic else " Default of the topic setting of that name."
    return (
        ConfigDef(
            name=COMPRESSION_TYPE,
            type=ConfigType.STRING,
            default=PRODUCER,
            choices=_CHOICES,
            synonyms=synonyms(COMPRESSION_TYPE),
            doc="The codec of stored batches. producer: as they were sent. With another value the broker "
            "checks the records of a batch and compresses them again, if they have another codec, which "
            f"takes processor time.{default}",
        ),
        ConfigDef(
            name=GZIP_LEVEL,
            type=ConfigType.INT,
            default=str(_GZIP_DEFAULT),
            minimum=_GZIP_DEFAULT,
            maximum=_GZIP_MOST,
            fault=_gzip_fault,
            synonyms=synonyms(GZIP_LEVEL),
            doc=f"Level of compression.type=gzip, 1 to 9; -1 for that of zlib.{default}",
        ),
        ConfigDef(
            name=LZ4_LEVEL,
            type=ConfigType.INT,
            default="9",
            minimum=1,
            maximum=17,
            synonyms=synonyms(LZ4_LEVEL),
            doc=f"Level of compression.type=lz4.{default}",
        ),
        ConfigDef(
            name=ZSTD_LEVEL,
            type=ConfigType.INT,
            default="3",
            minimum=-131072,
            maximum=22,
            synonyms=synonyms(ZSTD_LEVEL),
            doc=f"Level of compression.type=zstd.{default}",
        ),
    )


TOPIC_COMPRESSION: Final = _settings(of_topic=True)
BROKER_COMPRESSION: Final = _settings(of_topic=False)
