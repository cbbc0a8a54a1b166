"""Answers as plain JSON that two brokers can be compared by: what must differ between any two
brokers is given a name.

| in an answer | in the transcript |
| --- | --- |
| topic id | `id(topic)`, with the topic's name; `id?` where the script never learned of it |
| message text | `text`, or null |
| wall clock time | `now` if it is within a day of the recording |
| leader epoch | `epoch` of the partition's leader if it is the present one |
| host, port, node id, cluster id, log directory | their names |
| id of a fetch session | `session`, or 0 |
| producer id | `producer(1)`, `producer(2)` in the order of appearance |
| coordinator epoch of a transaction | `coordinator` if it is the broker's own |
| id of a telemetry subscription | `subscription`, or 0 |
| member id made of a client or instance id and a UUID | `client(1)`, `client(2)` in order |
| member id made of a UUID alone, in base 64 | `member(1)`, `member(2)` in order |
| tokens of SASL | nonce, salt, proof and signature of SCRAM by their names |
| record batches | rows of base offset, last offset, codec and the records' keys and values |
| batches in transactions | likewise, and who sent them; markers without the coordinator's epoch |
| rows of topics, partitions, groups, configs | sorted: Kafka's order is that of hash tables |
| in an answer, partitions assigned, names subscribed to, SASL mechanisms | sorted likewise |
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
import struct
import time
import uuid
from collections.abc import Mapping
from typing import Any, TypeAlias

from kbroker.formats.batches import BatchHeader, iter_headers, iter_records
from kbroker.formats.compression import Codec, CorruptPayload

Json: TypeAlias = Any
_DAY_MS = 86_400_000
_NAMED_FIELDS = {
    "host",
    "port",
    "cluster_id",
    "log_dir",
    "node_id",
    "leader_id",
    "controller_id",
    "broker_id",
    "rack",
}
_TEXT_FIELDS = {"error_message", "acknowledge_error_message", "error_string", "batch_index_error_message"}
_BATCH_FIELDS = {"records"}
_SET_FIELDS = {"partitions", "subscribed_topic_names", "mechanisms"}
_MEMBER_FIELDS = {"member_id", "leader"}
_PRODUCER_FIELDS = {"producer_id", "v3_and_below_producer_id", "producer_id_filters"}
OWN_COORDINATOR_EPOCHS = 100
"""A fresh broker's own epochs are below."""
_MARKER_VALUE = 2
"""Bytes before the coordinator's epoch."""
_MADE_MEMBER_ID = re.compile(r"(.*)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)
_SCRAM_ATTRIBUTE = re.compile(r"(^|,)([rspv])=[^,]+")
_SCRAM_NAMES = {"r": "nonce", "s": "salt", "p": "proof", "v": "signature"}
_UUID_IN_BASE_64 = re.compile(r"[\w-]{22}", re.ASCII)


class Names:
    """What a script has learned of one broker: the topic of each id, the leader epoch, the
    producers, the members."""

    def __init__(self) -> None:
        self.topics: dict[uuid.UUID, str] = {}
        self.leader_epochs: set[int] = set()
        self._producers: dict[int, str] = {}
        self._members: dict[str, dict[str, str]] = {}

    def producer(self, producer_id: int) -> str:
        return self._producers.setdefault(producer_id, f"producer({len(self._producers) + 1})")

    def member(self, member_id: str) -> str:
        """Counted for each client id, so that names do not depend on the order of rows in a table
        with members of several clients."""
        made = _MADE_MEMBER_ID.fullmatch(member_id)
        client = made[1] if made else "member" if _UUID_IN_BASE_64.fullmatch(member_id) else None
        if client is None:
            return member_id
        known = self._members.setdefault(client, {})
        return known.setdefault(member_id, f"{client}({len(known) + 1})")


def transcribe(value: Any, names: Names, field: str = "") -> Json:
    """An entity of kio, or its request in built-in types, as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        rows = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        kinds = _kinds(rows)
        return {name: _as_set(name, transcribe(inner, names, kinds[name])) for name, inner in rows.items()}
    if isinstance(value, Mapping):
        kinds = _kinds(value)
        return {str(name): transcribe(inner, names, kinds[name]) for name, inner in value.items()}
    if field in _BATCH_FIELDS and isinstance(value, (bytes, memoryview)):
        return _batches(bytes(value), names)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sorted([transcribe(inner, names, field) for inner in value])
    return _scalar(value, names, field)


def _kinds(row: Mapping[str, Any]) -> dict[str, str]:
    """What each field means: the host of an access control entry is not that of a broker."""
    return {name: "entry_host" if name == "host" and "principal" in row else str(name) for name in row}


def _scalar(value: Any, names: Names, field: str) -> Json:
    if isinstance(value, uuid.UUID):
        return (
            "id(zero)" if not value.int else f"id({names.topics[value]})" if value in names.topics else "id?"
        )
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return _moment(round(value.timestamp() * 1000))
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        return _masked(text) if field == "auth_bytes" else text
    if value is not None and field in _TEXT_FIELDS:
        return "text"
    if value is not None and field in _NAMED_FIELDS and value not in (-1, 0):
        return field
    if "leader_epoch" in field and value in names.leader_epochs:
        return "epoch"
    if field == "session_id" and value:
        return "session"
    if field == "subscription_id" and value:
        return "subscription"
    if field in _PRODUCER_FIELDS and isinstance(value, int) and value >= 0:
        return names.producer(value)
    if field == "coordinator_epoch" and 0 <= value < OWN_COORDINATOR_EPOCHS:
        return "coordinator"
    if field in _MEMBER_FIELDS and isinstance(value, str):
        return names.member(value)
    if field.endswith("timestamp") and isinstance(value, int):
        return _moment(value)
    return value


def _masked(token: str) -> str:
    """A SCRAM message without its chance parts. PLAIN has no such attributes."""
    return _SCRAM_ATTRIBUTE.sub(lambda found: f"{found[1]}{found[2]}={_SCRAM_NAMES[found[2]]}", token)


def _moment(ms: int) -> Json:
    return "now" if abs(ms - time.time() * 1000) < _DAY_MS else ms


def _sorted(rows: list[Json]) -> list[Json]:
    """Rows of tables in a fixed order; runs of offsets and acknowledge types keep their order."""
    if (
        rows
        and all(isinstance(row, dict) for row in rows)
        and not any("first_offset" in row or "base_offset" in row for row in rows)
    ):
        return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
    return rows


def _as_set(field: str, value: Json) -> Json:
    scalars = (
        field in _SET_FIELDS and isinstance(value, list) and not any(isinstance(each, dict) for each in value)
    )
    return sorted(value) if scalars else value


def _batches(data: bytes, names: Names) -> Json:
    rows: list[Json] = []
    for position, header in iter_headers(data):
        codec = Codec(header.codec_id).name if header.codec_id in list(Codec) else str(header.codec_id)
        row: dict[str, Json] = {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "codec": codec,
        }
        try:
            row["records"] = [
                [_text(record.key), _text(record.value)] for record in iter_records(data, position)
            ]
        except (CorruptPayload, ValueError, LookupError, struct.error):  # scripts also send malformed data
            row["records"] = "unreadable"
        if header.is_control:
            row["control"] = True
        if header.is_transactional and header.has_producer:
            row |= _in_transaction(header, names)
            if header.is_control and row["records"] != "unreadable":
                row["records"] = [[key, value and value[:_MARKER_VALUE]] for key, value in row["records"]]
        rows.append(row)
    return rows


def _in_transaction(header: BatchHeader, names: Names) -> dict[str, Json]:
    return {
        "producer": names.producer(header.producer_id),
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")
