"""Reads a data directory by docs/format.md and the heads of modules that it links to, without
kbroker's code: this proves that they are sufficient.

`read_directory` returns every partition's batches and the state map; `share_states` decodes the
share state in it. This module is written from these texts only, so that a wrong or
incomplete one makes a test fail; it must not import kbroker.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import crc32c
import lmdb
from rocksdict import AccessType, Options, Rdict

STATE_LOG = "7f8f0d4b-6f2c-5a0e-9d3e-5f5f73686172-0"
POSITION_KEY = b"\xff" * 500


class Directory(NamedTuple):
    """`logs`: by topic id and partition, the batches in order."""

    logs: dict[tuple[UUID, int], list[bytes]]
    state: dict[bytes, bytes]


def read_directory(data_dir: Path) -> Directory:
    description = json.loads((data_dir / "kbroker.json").read_text())
    assert description["format_version"] in (1, 2, 3, 4, 5)
    log_engine, state_engine = description["log_engine"], description["state_engine"]
    return Directory(
        LOGS[log_engine](data_dir / f"log-{log_engine}"),
        STATES[state_engine](data_dir / f"state-{state_engine}"),
    )


# --- record batches ---


def batches_of(data: bytes, least_offset: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """(base offset, last offset, batch) of whole batches from the front."""
    position = 0
    while position + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, position)
        end = position + 12 + length
        if length < 49 or end > len(data) or data[position + 16] != 2 or base < least_offset:
            return
        (crc,) = struct.unpack_from(">I", data, position + 17)
        if crc32c.crc32c(data[position + 21 : end]) != crc:
            return
        (delta,) = struct.unpack_from(">i", data, position + 23)
        yield base, base + delta, data[position:end]
        least_offset, position = base + delta + 1, end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    return (None, position) if length < 0 else (data[position : position + length], position + length)


def records_of(batch: bytes) -> Iterator[tuple[bytes | None, bytes | None, dict[str, bytes | None]]]:
    """(key, value, headers) of an uncompressed batch."""
    attributes, count = struct.unpack_from(">h", batch, 21)[0], struct.unpack_from(">i", batch, 57)[0]
    assert not attributes & 7
    position = 61
    for _ in range(count):
        length, position = _varint(batch, position)
        end = position + length
        _, position = _varint(batch, position + 1)
        _, position = _varint(batch, position)
        key, position = _bytes(batch, position)
        value, position = _bytes(batch, position)
        headers = {}
        number, position = _varint(batch, position)
        for _ in range(number):
            name, position = _bytes(batch, position)
            headers[(name or b"").decode()], position = _bytes(batch, position)
        assert position == end
        yield key, value, headers
    assert position == len(batch)


# --- topic data ---


def segment_log(directory: Path) -> list[tuple[int, bytes]]:
    """(last offset, batch) of one log of the segment engine; empty for a missing log."""
    found: list[tuple[int, bytes]] = []
    end_offset = 0
    if not directory.exists():
        return found
    for segment in sorted(each for each in directory.iterdir() if each.name.isdigit()):
        follows = segment / "follows"
        if found and follows.exists() and int(follows.read_text()) > end_offset:
            break
        data = (segment / "data.ninja").read_bytes()
        batches = list(batches_of(data, int(segment.name)))
        end_offset = batches[-1][1] + 1 if batches else int(segment.name)
        if (segment / ".index").exists():
            rows, count = struct.unpack("<QQ", (segment / ".index" / "shape.ninja").read_bytes())
            index = struct.unpack(f"<{rows * count}q", (segment / ".index" / "data.ninja").read_bytes())
            ends = index[2 * count : 3 * count]
            stored = count - (ends[-1] == (ends[-2] if count > 1 else 0))  # without the place of a hole
            assert (rows, list(index[:stored])) == (4, [base for base, _, _ in batches])
            assert list(index[count : count + stored]) == [last for _, last, _ in batches]
            assert ends[-1] == sum(len(batch) for _, _, batch in batches) == len(data)
            end_offset = index[2 * count - 1] + 1
        found += [(last, batch) for _, last, batch in batches]
    return found


def _segment_logs(directory: Path) -> dict[tuple[UUID, int], list[bytes]]:
    found = {}
    for log in directory.iterdir():
        if log.is_dir() and not log.name.endswith((".deleted", ".tmp")):
            topic_id, _, partition = log.name.rpartition("-")
            found[UUID(topic_id), int(partition)] = [batch for _, batch in segment_log(log)]
    return found


class _Meta(NamedTuple):
    logs: dict[int, tuple[UUID, int]]
    segments: list[tuple[int, int, int]]
    """Log number, base offset, segment number, in that order."""


def _meta(entries: list[tuple[bytes, bytes]]) -> _Meta:
    logs, segments = {}, []
    for key, value in entries:
        if key[:1] == b"L":
            topic_id, partition = struct.unpack(">16si", key[1:])
            logs[struct.unpack_from(">I", value)[0]] = (UUID(bytes=topic_id), partition)
        elif key[:1] == b"S":
            log_number, base_offset = struct.unpack(">Iq", key[1:])
            segments.append((log_number, base_offset, struct.unpack_from(">q", value)[0]))
    return _Meta(logs, sorted(segments))


def _chunk_batches(base_offset: int, chunk: bytes) -> list[bytes]:
    batches = list(batches_of(chunk[40:], base_offset))
    assert batches[0][0] == base_offset
    assert batches[-1][1] + 1 == struct.unpack_from(">q", chunk)[0]
    assert sum(len(batch) for _, _, batch in batches) == len(chunk) - 40
    return [batch for _, _, batch in batches]


def _lmdb_logs(directory: Path) -> dict[tuple[UUID, int], list[bytes]]:
    with lmdb.open(str(directory), readonly=True, max_dbs=1000, lock=False) as env:
        with env.begin(db=env.open_db(b"meta", create=False)) as transaction:
            meta = _meta(list(transaction.cursor()))
        found: dict[tuple[UUID, int], list[bytes]] = {log: [] for log in meta.logs.values()}
        for log_number, _, segment_number in meta.segments:
            with env.begin(db=env.open_db(b"s%x" % segment_number, create=False)) as transaction:
                for key, chunk in transaction.cursor():
                    found[meta.logs[log_number]] += _chunk_batches(struct.unpack(">Q", key)[0], bytes(chunk))
    return found


def _open_rocksdb(directory: Path) -> Rdict:
    options = {name: Options(raw_mode=True) for name in ("default", "meta")}
    return Rdict(
        str(directory / "db"),
        Options(raw_mode=True),
        column_families=options,
        access_type=AccessType.read_only(False),
    )


def _rocksdb_logs(directory: Path) -> dict[tuple[UUID, int], list[bytes]]:
    database = _open_rocksdb(directory)
    meta = _meta(list(database.get_column_family("meta").items()))
    found: dict[tuple[UUID, int], list[bytes]] = {log: [] for log in meta.logs.values()}
    for key, chunk in database.items():
        log_number, base_offset = struct.unpack(">IQ", key)
        found[meta.logs[log_number]] += _chunk_batches(base_offset, chunk)
    database.close()
    return found


def _sqlite_logs(directory: Path) -> dict[tuple[UUID, int], list[bytes]]:
    database = sqlite3.connect(directory / "log.sqlite")
    meta = _meta(list(database.execute("SELECT key, value FROM meta")))
    found: dict[tuple[UUID, int], list[bytes]] = {log: [] for log in meta.logs.values()}
    for log_number, base_offset, chunk in database.execute(
        "SELECT log, base_offset, value FROM chunk ORDER BY log, base_offset"
    ):
        found[meta.logs[log_number]] += _chunk_batches(base_offset, chunk)
    database.close()
    return found


LOGS = {"segment": _segment_logs, "lmdb": _lmdb_logs, "rocksdb": _rocksdb_logs, "sqlite": _sqlite_logs}


# --- the state ---


def _change(record: tuple[bytes | None, bytes | None, dict[str, bytes | None]]) -> tuple[bytes, bytes | None]:
    key, value, headers = record
    assert key is not None
    if key[:2] == b"\x00\xff":
        return key[2:], value
    if key[:2] not in (b"\0\0", b"\0\1"):
        return key, value
    number = bytes(8) if key[:2] == b"\0\0" else headers["n"] or b""
    group_end = 4 + struct.unpack_from(">h", key, 2)[0]
    return b"share/" + key[group_end:] + key[2:group_end] + number, value


def _replay(
    log: list[tuple[int, bytes]], state: dict[bytes, bytes], from_offset: int = 0
) -> dict[bytes, bytes]:
    for last_offset, batch in log:
        if last_offset >= from_offset:
            for key, value in map(_change, records_of(batch)):
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
    return state


def _segment_state(directory: Path) -> dict[bytes, bytes]:
    return _replay(segment_log(directory / STATE_LOG), {})


def _lmdb_state(directory: Path) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    position = 0
    with lmdb.open(str(directory), readonly=True, lock=False) as env, env.begin() as transaction:
        for key, value in transaction.cursor():
            if key == POSITION_KEY:
                (position,) = struct.unpack(">q", value)
            elif len(key) <= 480:
                state[key] = value
            else:
                parts, at = [], 0
                while at < len(value):
                    (length,) = struct.unpack_from(">I", value, at)
                    parts.append(value[at + 4 : at + 4 + length])
                    at += 4 + length
                state |= {key[:480] + rest: each for rest, each in zip(parts[::2], parts[1::2], strict=True)}
    return _replay(segment_log(directory / "redo" / STATE_LOG), state, position)


def _rocksdb_state(directory: Path) -> dict[bytes, bytes]:
    database = _open_rocksdb(directory)
    state = dict(database.get_column_family("meta").items())
    database.close()
    return state


def _sqlite_state(directory: Path) -> dict[bytes, bytes]:
    database = sqlite3.connect(directory / "state.sqlite")
    state = dict(database.execute("SELECT key, value FROM state"))
    database.close()
    return state


STATES = {"segment": _segment_state, "lmdb": _lmdb_state, "rocksdb": _rocksdb_state, "sqlite": _sqlite_state}


# --- share state ---


class ShareState(NamedTuple):
    """`offsets`: (state, delivery count) of each known offset from the start on."""

    start_offset: int
    delivery_complete_count: int
    offsets: dict[int, tuple[int, int]]


def _unsigned(value: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of up to two bytes, and its end."""
    low = value[position]
    return (low, position + 1) if low < 128 else (low - 128 + (value[position + 1] << 7), position + 2)


def _share_record(value: bytes, *, is_snapshot: bool) -> tuple[int, int, list[tuple[int, int, int, int]]]:
    """Start offset, delivery complete count, batches. One-byte varints suffice for the tests' data,
    except for tags."""
    start_at, position = (14, 38) if is_snapshot else (10, 18)
    assert value[:2] == b"\0\0"
    (start_offset,) = struct.unpack_from(">q", value, start_at)
    count, position = value[position] - 1, position + 1
    batches = []
    for _ in range(count):
        batches.append(struct.unpack_from(">qqbh", value, position))
        assert value[position + 19] == 0, "a batch has no tagged fields"
        position += 20
    complete = -1
    tags, position = value[position], position + 1
    for _ in range(tags):
        tag, position = _unsigned(value, position)
        assert (tag, value[position]) in ((0, 4), (1000, 4))
        if tag == 0:
            (complete,) = struct.unpack_from(">i", value, position + 1)
        position += 1 + value[position]
    assert position == len(value)
    return start_offset, complete, batches


def share_states(state: dict[bytes, bytes]) -> dict[tuple[str, UUID, int], ShareState]:
    found: dict[tuple[str, UUID, int], ShareState] = {}
    for key in sorted(key for key in state if key.startswith(b"share/")):
        topic_id, partition, length = struct.unpack_from(">16sih", key, 6)
        group, (number,) = key[28 : 28 + length].decode(), struct.unpack(">q", key[28 + length :])
        name = (group, UUID(bytes=topic_id), partition)
        start_offset, complete, batches = _share_record(state[key], is_snapshot=number == 0)
        before = found.get(name, ShareState(-1, -1, {}))
        start_offset = before.start_offset if number and start_offset == -1 else start_offset
        offsets = {} if number == 0 else dict(before.offsets)
        for first, last, code, count in batches:
            for offset in range(first, last + 1):
                offsets[offset] = max(
                    offsets.get(offset, (0, -1)), (code, count), key=lambda each: (each[1], each[0])
                )
        kept = {offset: each for offset, each in offsets.items() if offset >= start_offset}
        found[name] = ShareState(start_offset, complete, kept)
    return found
