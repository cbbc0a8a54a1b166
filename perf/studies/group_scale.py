"""Large groups and many groups: 500 members in one group, and 500 groups of one member each, with
both group protocols.

    python -m perf.studies.group_scale                                  everything, some minutes
    python -m perf.studies.group_scale --engine lmdb --members 500 --protocol consumer

The members are threads of this process, each with its own connection, that act like a consumer's
heartbeat thread. They join, rejoin when the broker requires it, assign partitions if they are the
leader, and send heartbeats. Nothing is fetched.

    settled s       from the first member's connection until partitions are assigned evenly and
                    all members are in the same epoch
    rounds          classic protocol: generations until then; other protocol: group epochs
    one more s      from the joining of another member until the group is settled again
    rest %          CPU time of the broker afterwards, in percent of elapsed time, including the
                    heartbeats of all members
"""

from __future__ import annotations

import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from kbroker.client.rpc import BrokerUnreachable, Connection
from perf.measuring.measured_broker import measured_broker
from perf.measuring.processes import cpu_s

TOPIC = "orders"
PATIENCE_S = 180.0
CLASSIC, CONSUMER = "classic", "consumer"
_CLASSIC_HEARTBEAT_S = 3.0
_REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED, _UNKNOWN_MEMBER_ID, _ILLEGAL_GENERATION = 27, 79, 25, 22
_SUBSCRIPTION = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)


class Reading(NamedTuple):
    settled_s: float
    rounds: int
    one_more_s: float
    rest_percent: float


@dataclass
class Member:
    """A member and its last state. `partitions` is the number of its partitions; a classic member's
    assignment is four bytes with that number."""

    group: str
    port: int
    partitions_of_topic: int
    stopping: threading.Event
    epoch: int = 0
    partitions: int = -1
    member_id: str = ""
    failed: str = ""
    connection: Connection = field(init=False)

    def run(self, protocol: str) -> None:
        try:
            with Connection(
                "127.0.0.1", self.port, client_id="scale", timeout_s=PATIENCE_S
            ) as self.connection:
                (self.be_classic if protocol == CLASSIC else self.be_modern)()
        except (BrokerUnreachable, AssertionError) as error:
            if not self.stopping.is_set():
                self.failed = f"{self.member_id}: {error}"

    def be_classic(self) -> None:
        joined = False
        while not self.stopping.is_set():
            if not joined:
                joined = self.join()
            elif not self.stopping.wait(_CLASSIC_HEARTBEAT_S):
                answer = self.connection.call(
                    "heartbeat",
                    4,
                    group_id=self.group,
                    generation_id=self.epoch,
                    member_id=self.member_id,
                    group_instance_id=None,
                )
                joined = not self.must_join(answer.error_code.value)

    def join(self) -> bool:
        """Sends JoinGroup and SyncGroup. Returns false if the member has to rejoin."""
        row = {"name": "range", "metadata": _SUBSCRIPTION}
        answer = self.connection.call(
            "join_group", 9, group_id=self.group, session_timeout=45_000, rebalance_timeout=60_000,
            member_id=self.member_id,
            group_instance_id=None, protocol_type="consumer", protocols=[row], reason=None,
        )  # fmt: skip
        self.member_id = answer.member_id
        if answer.error_code.value == _MEMBER_ID_REQUIRED or self.must_join(answer.error_code.value):
            return False
        generation, members = answer.generation_id, answer.members
        share, rest = divmod(self.partitions_of_topic, max(1, len(members)))
        rows = [
            {"member_id": each.member_id, "assignment": struct.pack(">i", share + (place < rest))}
            for place, each in enumerate(members)
        ]
        answer = self.connection.call(
            "sync_group", 5, group_id=self.group, generation_id=generation, member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer", protocol_name="range", assignments=rows,
        )  # fmt: skip
        if self.must_join(answer.error_code.value):
            return False
        (self.partitions,) = struct.unpack(">i", answer.assignment)
        self.epoch = generation
        return True

    def must_join(self, code: int) -> bool:
        if code in (_UNKNOWN_MEMBER_ID, _ILLEGAL_GENERATION):
            self.member_id = self.member_id if code == _ILLEGAL_GENERATION else ""
        else:
            assert code in (0, _REBALANCE_IN_PROGRESS), f"error {code}"
        return code != 0

    def be_modern(self) -> None:
        self.member_id = str(uuid.uuid4())
        owned: list[dict[str, object]] = []
        while True:
            joins = self.epoch == 0
            answer = self.connection.call(
                "consumer_group_heartbeat", 1, group_id=self.group, member_id=self.member_id,
                member_epoch=self.epoch, instance_id=None,
                rack_id=None, rebalance_timeout=60_000 if joins else -1,
                subscribed_topic_names=[TOPIC] if joins else None,
                subscribed_topic_regex=None, server_assignor=None,
                topic_partitions=owned if owned or joins else None,
            )  # fmt: skip
            assert not answer.error_code.value, f"error {answer.error_code.value}, {answer.error_message}"
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                rows = answer.assignment.topic_partitions
                owned = [{"topic_id": row.topic_id, "partitions": row.partitions} for row in rows]
                self.partitions = sum(len(row.partitions) for row in rows)
                continue  # It confirms them at once.
            if self.stopping.wait(answer.heartbeat_interval.total_seconds()):
                return


class Crowd:
    """The members of one or many groups."""

    def __init__(self, port: int, protocol: str, partitions: int) -> None:
        self._port, self._protocol, self._partitions = port, protocol, partitions
        self.members: list[Member] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def add(self, group: str) -> None:
        member = Member(group, self._port, self._partitions, self._stopping)
        self.members.append(member)
        self._threads.append(threading.Thread(target=member.run, args=(self._protocol,), daemon=True))
        self._threads[-1].start()

    def settle(self) -> None:
        """Waits until all partitions of every group are assigned evenly and its members are in the
        same epoch. Raises ClickException."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_settled():
            failed = [member.failed for member in self.members if member.failed]
            if failed or time.monotonic() > deadline:
                raise click.ClickException(f"{failed[0] if failed else 'the groups do not settle'}")
            time.sleep(0.02)

    def _is_settled(self) -> bool:
        groups: dict[str, list[Member]] = {}
        for member in self.members:
            groups.setdefault(member.group, []).append(member)
        return all(self._has_settled(members) for members in groups.values())

    def _has_settled(self, members: list[Member]) -> bool:
        shares = [member.partitions for member in members]
        is_even = sum(shares) == self._partitions and max(shares) - min(shares) <= 1
        return is_even and len({member.epoch for member in members}) == 1

    def stop(self) -> None:
        self._stopping.set()
        for member in self.members:
            with suppress(AttributeError):
                member.connection.close()


@contextmanager
def _crowd(port: int, protocol: str, partitions: int) -> Iterator[Crowd]:
    crowd = Crowd(port, protocol, partitions)
    try:
        yield crowd
    finally:
        crowd.stop()


def measure(engine: str, protocol: str, groups: int, members: int, rest_s: float) -> Reading:
    partitions = 2 * members
    with tempfile.TemporaryDirectory() as home:
        broker = measured_broker(Path(home) / "broker", engine, "disk")
        broker.start()
        try:
            host, _, port = broker.bootstrap.rpartition(":")
            with Connection(host, int(port)) as admin:
                row = {
                    "name": TOPIC,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "assignments": (),
                    "configs": (),
                }
                admin.call("create_topics", 7, topics=[row], timeout=30_000, validate_only=False)
            with _crowd(int(port), protocol, partitions) as crowd:
                return _measured(crowd, broker.pid, groups, members, rest_s)
        finally:
            broker.kill()


def _measured(crowd: Crowd, pid: int, groups: int, members: int, rest_s: float) -> Reading:
    began = time.monotonic()
    for number in range(groups):
        for _ in range(members):
            crowd.add(f"group-{number}")
    crowd.settle()
    settled_s, rounds = time.monotonic() - began, max(member.epoch for member in crowd.members)
    began = time.monotonic()
    crowd.add("group-0")
    crowd.settle()
    one_more_s = time.monotonic() - began
    began, used_s = time.monotonic(), cpu_s(pid)
    time.sleep(rest_s)
    return Reading(settled_s, rounds, one_more_s, 100 * (cpu_s(pid) - used_s) / (time.monotonic() - began))


@click.command(help=__doc__)
@click.option("--engine", default="segment", show_default=True)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice([CLASSIC, CONSUMER]),
    default=(CLASSIC, CONSUMER),
)
@click.option(
    "--members",
    default=500,
    show_default=True,
    help="Members of the large group, and number of small groups.",
)
@click.option(
    "--rest", default=20.0, show_default=True, help="Seconds over which the CPU time at rest is measured."
)
def main(engine: str, protocols: tuple[str, ...], members: int, rest: float) -> None:
    table = Table("protocol", "groups", "members", "settled s", "rounds", "one more s", "rest %")
    for protocol in protocols:
        for groups, size in ((1, members), (members, 1)):
            reading = measure(engine, protocol, groups, size, rest)
            shown = (
                f"{reading.settled_s:.1f}",
                str(reading.rounds),
                f"{reading.one_more_s:.1f}",
                f"{reading.rest_percent:.1f}",
            )
            table.add_row(protocol, str(groups), str(size), *shown)
    Console().print(table)


if __name__ == "__main__":
    main()
