"""The views of a broker at the admin HTTP endpoint; kbroker.api has their paths and rights. Those
that read load nothing into memory.

metrics      for Prometheus
in_flight    the in-flight windows of the group's share-partitions in memory
users        names, never credentials
disconnect   ends the connections of a user
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import trio

from kbroker.broker.broker import Broker
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.parked_left import due_parked, kept_sent_ms, parked_left
from kbroker.clock import wall_clock_ms
from kbroker.metrics_export.exposition import MetricsExport
from kbroker.security.acls import ResourceType
from kbroker.security.principals import user
from kbroker.security.sasl import SCRAM
from kbroker.server.admin_access import AdminCaller
from kbroker.server.admin_actions import ActionView, Names
from kbroker.server.admin_requests import HttpAnswer, HttpRefusal, HttpRequest, json_answer
from kbroker.share.in_flight_view import InFlightRange, parked_view
from kbroker.share.lag import ParkedLeft
from kbroker.share.persister import TopicPartition
from kbroker.share.share_partition import SharePartition

_MECHANISMS = {number: name for name, number in SCRAM.items()}


class AdminViews:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metrics = MetricsExport(broker)

    def views(self) -> Mapping[str, ActionView]:
        return {
            "metrics": self._scrape,
            "in_flight": self._in_flight,
            "users": self._users,
            "disconnect": self._disconnect,
        }

    async def _scrape(self, request: HttpRequest, _: AdminCaller, names: Names) -> HttpAnswer:
        return HttpAnswer(*await self._metrics.scrape(request.accept))

    async def _users(self, request: HttpRequest, _: AdminCaller, names: Names) -> HttpAnswer:
        credentials = self._broker.security.credentials
        return json_answer(
            {
                "users": [
                    {
                        "user": name,
                        "credentials": [
                            {"mechanism": _MECHANISMS[each], "iterations": iterations}
                            for each, iterations in credentials.described(name).items()
                        ],
                    }
                    for name in credentials.names()
                ]
            }
        )

    async def _disconnect(self, request: HttpRequest, _: AdminCaller, names: Names) -> HttpAnswer:
        name = names["USER"]
        return json_answer(
            {"user": name, "connections": self._broker.security.sessions.disconnect(user(name))}
        )

    async def _in_flight(self, request: HttpRequest, caller: AdminCaller, names: Names) -> HttpAnswer:
        group_id, topic = names["GROUP"], names.get("TOPIC")
        loaded = [each for each in self._broker.share_partitions.loaded() if each.key[0] == group_id]
        if not loaded and not self._is_group(group_id):
            raise HttpRefusal(404, self._why_not(group_id))
        if topic is not None and self._broker.topics.by_name(topic) is None:
            raise HttpRefusal(404, f"there is no topic {topic}")
        chosen = [
            each
            for each in loaded
            if topic in (None, each.partition.topic_name)
            and caller.sees(ResourceType.TOPIC, each.partition.topic_name)
        ]
        in_order = sorted(chosen, key=lambda each: (each.partition.topic_name, each.partition.log.partition))
        pieces = _in_flight_pieces(self._broker, caller, group_id, in_order, topic)
        return HttpAnswer("application/json", pieces)

    def _why_not(self, group_id: str) -> str:
        if all(each.group_id != group_id for each in self._broker.consumer_group_service.groups.listed()):
            return f"there is no share group {group_id}"
        return (
            f"group {group_id} is a consumer group: it holds no records, and `kbroker groups describe` "
            "shows its offsets"
        )

    def _is_group(self, group_id: str) -> bool:
        return any(
            group.group_id == group_id for group in self._broker.share_group_service.coordinator.listed()
        )


async def _in_flight_pieces(
    broker: Broker,
    caller: AdminCaller,
    group_id: str,
    chosen: Sequence[LoadedSharePartition],
    topic: str | None,
) -> AsyncGenerator[bytes, None]:
    """One JSON object on one line, a share-partition at a time: a group may have a hundred thousand
    ranges."""
    yield f'{{"group": {json.dumps(group_id)}, "now_ms": {wall_clock_ms()}, "share_partitions": ['.encode()
    separator = ""
    for each in chosen:
        parked = await parked_left(broker.persister, *each.key, each.partition.log_start_offset)
        if each.engine is not None and not each.gone:
            shown = _share_partition(broker, each, each.engine)
            shown |= await _parked(broker, group_id, each.key[1], parked, each.partition.log_start_offset)
            shown |= await _due(broker, group_id, each.key[1], parked)
            shown |= {"parked_ranges": _parked_ranges(broker, each, each.engine)}
            yield (separator + json.dumps(shown)).encode()
            separator = ", "
            await trio.lowlevel.checkpoint()
    yield b"]"
    if topic is not None:
        loaded = {each.partition.log.partition for each in chosen}
        yield f', "not_loaded": {json.dumps(await _not_loaded(broker, group_id, topic, loaded))}'.encode()
        yield f', "log_holders": {json.dumps(_log_holders(broker, caller, topic))}'.encode()
        waiting_bytes = broker.dead_letters.statistics().waiting_bytes.get(group_id, 0)
        yield f', "dead_letters_waiting_bytes": {waiting_bytes}'.encode()
    yield b"}\n"


async def _not_loaded(
    broker: Broker, group_id: str, name: str, loaded: Collection[int]
) -> list[dict[str, object]]:
    """Parked records of share-partitions that are not in memory, if they have any."""
    found: list[dict[str, object]] = []
    topic = broker.topics.by_name(name)
    for partition in () if topic is None else topic.partitions:
        number = partition.log.partition
        if number not in loaded:
            key = TopicPartition(partition.log.topic_id, number)
            parked = await parked_left(broker.persister, group_id, key, partition.log_start_offset)
            if parked.number:
                shown = await _parked(broker, group_id, key, parked, partition.log_start_offset)
                shown |= await _due(broker, group_id, key, parked)
                found.append({"topic": name, "partition": number, **shown})
    return found


async def _parked(
    broker: Broker, group_id: str, key: TopicPartition, parked: ParkedLeft, log_start_offset: int
) -> dict[str, object]:
    """Their number and lowest offset. If that record is kept beside the log, also when it was sent,
    which the log may no longer show."""
    if not parked.number:
        return {"parked": 0, "first_parked": None, "first_parked_sent_ms": None}
    first, sent_ms = parked.first_offset, None
    if first < log_start_offset:
        sent_ms = await kept_sent_ms(broker.persister, group_id, key, first)
    return {"parked": parked.number, "first_parked": first, "first_parked_sent_ms": sent_ms}


async def _due(broker: Broker, group_id: str, key: TopicPartition, parked: ParkedLeft) -> dict[str, object]:
    """How many of them are due, whether a member holds them or not, and when the next one is."""
    due, next_due_ms = 0, None
    if parked.number:
        due, next_due_ms = await due_parked(broker.persister, group_id, key, wall_clock_ms())
    return {"parked_due": due, "next_due_ms": next_due_ms}


def _log_holders(broker: Broker, caller: AdminCaller, name: str) -> list[dict[str, object]]:
    """The groups that hold logs of a topic against retention, and their offsets: by partition, the
    lowest offset first. Groups that the caller may not describe are left out."""
    topic = broker.topics.by_name(name)
    known = [
        (each.log.partition, broker.held_logs.known(each))
        for each in (() if topic is None else topic.partitions)
    ]
    return [
        {
            "partition": number,
            "group": group_id,
            "from_offset": offset,
            "bytes": holdings.held_bytes[group_id],
            "together_bytes": holdings.together_bytes[group_id],
        }
        for number, holdings in known
        for group_id, offset in holdings.holders.items()
        if caller.sees(ResourceType.GROUP, group_id)
    ]


def _share_partition(
    broker: Broker, loaded: LoadedSharePartition, engine: SharePartition
) -> dict[str, object]:
    view = engine.in_flight_view(now_ms(), loaded.partition.log_start_offset)
    group_id, _ = loaded.key
    holders = {each.member_id: _holder(broker, group_id, each.member_id) for each in view.ranges}
    return {
        "topic": loaded.partition.topic_name,
        "partition": loaded.partition.log.partition,
        "start_offset": view.start_offset,
        "end_offset": view.end_offset,
        "log_end_offset": loaded.partition.high_watermark,
        "lock_limit": view.lock_limit,
        "ranges": [_range(each, holders[each.member_id]) for each in view.ranges],
    }


def _parked_ranges(
    broker: Broker, loaded: LoadedSharePartition, engine: SharePartition
) -> list[dict[str, object]]:
    if engine.parking is None:
        return []
    found = parked_view(engine.parking, now_ms(), loaded.partition.log_start_offset)
    return [_range(each, _holder(broker, loaded.key[0], each.member_id)) for each in found]


def _holder(broker: Broker, group_id: str, member_id: str | None) -> dict[str, object]:
    """From the session, not the group: a member that has left the group holds its records until its
    session or its locks end."""
    if member_id is None:
        return dict.fromkeys(_HOLDER)
    session = broker.share_partitions.sessions.get(group_id, member_id)
    client = (None, None) if session is None else (session.client_id, session.client_host)
    in_group = broker.share_group_service.coordinator.has_member(group_id, member_id)
    return dict(zip(_HOLDER, (member_id, *client, in_group), strict=True))


_HOLDER = ("member_id", "client_id", "client_host", "in_group")


def _range(found: InFlightRange, holder: Mapping[str, object]) -> dict[str, object]:
    return {
        "first_offset": found.first_offset,
        "last_offset": found.last_offset,
        "state": found.state,
        "saving": found.is_saving,
        "delivery_count": found.delivery_count,
        **holder,
        "lock_ms_left": found.lock_ms_left,
    }
