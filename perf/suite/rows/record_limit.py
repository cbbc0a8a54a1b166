"""A share consumer that takes exactly one record at a time, with hand-written requests: ShareFetch
v2 in mode record_limit (KIP-1206).

confluent-kafka's consumer requests whole batches. This one requests one record, acknowledges it in
the request for the next one, and does nothing else. Requests are encoded once and patched, and only
the last bytes of a response are read, so that the broker dominates the measurement. There is one
process with one connection, and one group with one member. It must not know a broker's process.
"""

from __future__ import annotations

import multiprocessing
import struct
import time
import uuid
from typing import Any, NamedTuple

from kbroker.client import admin
from kbroker.client.rpc import Connection
from perf.workloads.window import Watch

RECORD_LIMIT = 1
_VERSION = 2
_WAIT_MS = 500
_WARM_UP_S = 0.3
_TIMEOUT_S = 30.0
_EPOCH, _FIRST, _LAST = 0x7A7B7C7D, 0x5152535455565758, 0x6162636465666768
_INT, _LONG, _OFFSETS = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">qq")
_OFFSETS_FROM_END = 23
"""A response with one topic, one partition and one acquired range ends with: first offset (8), last
offset (8), delivery count (2), tags of the range, of the partition and of the topic (1 each), no
node endpoints (1), tags (1)."""


class Taken(NamedTuple):
    """The result of a window. `answer_bytes`: bytes received per record. `ran_dry`: the topic ran
    out within the window, so the figures are meaningless."""

    records: int
    seconds: float
    answer_bytes: float
    ran_dry: bool


def take_one_by_one(bootstrap: str, topic: str, group: str, seconds: float, watch: Watch) -> Taken:
    """Takes records of partition 0 with one member of a new group, in a separate process. Raises
    RuntimeError if it fails."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_consume, args=(bootstrap, topic, group, seconds, there), daemon=True)
    process.start()
    there.close()
    try:
        _told(here, "begin")
        watch.opened()
        here.send(None)
        taken: Taken = _told(here, "taken", seconds)
        watch.closed()
        return taken
    finally:
        here.close()
        process.join(_TIMEOUT_S)
        process.kill()
        process.join()


def _told(pipe: Any, what: str, seconds: float = 0.0) -> Any:  # noqa: ANN401 - what a pipe carries
    try:
        if not pipe.poll(_TIMEOUT_S + seconds):
            raise RuntimeError("the consumer in record_limit mode does not respond")
        name, value = pipe.recv()
    except EOFError:
        raise RuntimeError("the consumer in record_limit mode ended") from None
    if name != what:
        raise RuntimeError(f"the consumer in record_limit mode: {value}")
    return value


def _consume(bootstrap: str, topic: str, group: str, seconds: float, parent: Any) -> None:  # noqa: ANN401 - a Connection of multiprocessing
    try:
        host, _, port = bootstrap.rpartition(":")
        with Connection(host, int(port), client_id="record-limit", timeout_s=_TIMEOUT_S) as connection:
            member = Member(connection, group, admin.topics(connection, [topic])[0].topic_id)
            member.join(topic)
            with member:
                _until(member, time.monotonic() + _WARM_UP_S)
                parent.send(("begin", None))
                parent.recv()
                parent.send(("taken", _until(member, time.monotonic() + seconds)))
    except Exception as error:  # the parent reports any error
        parent.send(("failed", f"{type(error).__name__}: {error}"))
        raise


def _until(member: Member, deadline: float) -> Taken:
    began, received, records, before = time.monotonic(), member.received_bytes, 0, member.took
    while (now := time.monotonic()) < deadline:
        member.take()
    records = member.took - before
    return Taken(records, now - began, (member.received_bytes - received) / max(1, records), member.ran_dry)


class Member:
    """A member, and a context: at its end the session is closed, which releases the records that it
    still holds."""

    def __init__(self, connection: Connection, group: str, topic_id: uuid.UUID) -> None:
        self._connection, self._group, self._topic_id = connection, group, topic_id
        self._member_id = str(uuid.uuid4())
        self._epoch = 0
        self._held = (0, 0)
        self.took = self.received_bytes = 0
        self.ran_dry = False

    def join(self, topic: str) -> None:
        """Joins the group and sends the first fetch, which opens the session. Raises
        RuntimeError."""
        answer = self._heartbeat(0, [topic])
        if answer.error_code.value:
            raise RuntimeError(f"joining failed with error {answer.error_code.value}: {answer.error_message}")
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._first_fetch():
            if time.monotonic() > deadline:
                raise RuntimeError("no record arrived")
        self._frame = bytearray(self._encoded(_EPOCH, [(_FIRST, _LAST)]))
        self._epoch_at, self._first_at, self._last_at = map(
            self._frame.index, (_INT.pack(_EPOCH), _LONG.pack(_FIRST), _LONG.pack(_LAST))
        )

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ran_dry:
            self._connection.call("share_fetch", _VERSION, **self._fields(-1, [self._held]))
        self._heartbeat(-1, None)

    def take(self) -> None:
        """Acknowledges the held record and waits for the next one."""
        if self.ran_dry:
            time.sleep(0.01)
            return
        self._epoch += 1
        _INT.pack_into(self._frame, self._epoch_at, self._epoch)
        _LONG.pack_into(self._frame, self._first_at, self._held[0])
        _LONG.pack_into(self._frame, self._last_at, self._held[1])
        self._connection.send_raw(bytes(self._frame))
        answer = self._connection.read_frame()
        self.received_bytes += len(answer)
        held = _OFFSETS.unpack_from(answer, len(answer) - _OFFSETS_FROM_END)
        if held[0] != self._held[1] + 1 or held[1] != held[0]:
            self.ran_dry = True
            return
        self._held = held
        self.took += 1

    def _first_fetch(self) -> bool:
        answer = self._connection.call("share_fetch", _VERSION, **self._fields(self._epoch, []))
        if answer.error_code.value:
            raise RuntimeError(f"a fetch failed with error {answer.error_code.value}: {answer.error_message}")
        rows = [row for response in answer.responses for row in response.partitions if row.acquired_records]
        if not rows:
            self._epoch += 1
            return False
        (acquired,) = rows[0].acquired_records
        self._held = (acquired.first_offset, acquired.last_offset)
        if acquired.first_offset != acquired.last_offset:
            raise RuntimeError(f"the broker delivered {acquired}, not one record")
        return True

    def _encoded(self, epoch: int, batches: list[tuple[int, int]]) -> bytes:
        return self._connection.encode("share_fetch", _VERSION, self._fields(epoch, batches))

    def _fields(self, epoch: int, held: list[tuple[int, int]]) -> dict[str, Any]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [1]} for first, last in held
        ]
        limits = (
            {}
            if epoch == -1
            else {
                "max_wait": _WAIT_MS,
                "min_bytes": 1,
                "max_bytes": 50 << 20,
                "max_records": 1,
                "batch_size": 1,
            }
        )
        return {
            "group_id": self._group,
            "member_id": self._member_id,
            "share_session_epoch": epoch,
            "share_acquire_mode": RECORD_LIMIT,
            "topics": [
                {
                    "topic_id": self._topic_id,
                    "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}],
                }
            ],
            "forgotten_topics_data": [],
            "is_renew_ack": False,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 0,
            "max_records": 0,
            "batch_size": 0,
            **limits,
        }

    def _heartbeat(self, epoch: int, topics: list[str] | None) -> Any:  # noqa: ANN401 - kio's entity
        return self._connection.call(
            "share_group_heartbeat", 1, group_id=self._group, member_id=self._member_id, member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=topics,
        )  # fmt: skip
