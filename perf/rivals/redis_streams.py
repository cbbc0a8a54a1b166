"""Redis Streams as a queue: a consumer group, XREADGROUP COUNT 1, XACK. Every change is synced
before its response."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from perf.rivals.rival import HOST, Failing, Rival, count_one, payload, program
from perf.rivals.server_process import ServerFailed, ServerProcess
from perf.workloads.client_process import Link
from perf.workloads.window import Client

if TYPE_CHECKING:
    import redis

GROUP = "workers"
_FILL_AT_ONCE = 5_000
_BLOCK_MS = 100
_LOOK_AGAIN_MS = 10
_AT_ONCE = 100
_NOW_MS = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)"
_PUT_OFF = f"""
{_NOW_MS}
local held = redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if held == 1 then redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[3]) end
return held
"""
_PUT_BACK = f"""
{_NOW_MS}
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, value in ipairs(due) do
  redis.call('ZREM', KEYS[2], value)
  redis.call('XADD', KEYS[1], '*', 'value', value, 'again', '1')
end
return #due
"""
_IN_FORCE = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


class RedisStreams(Rival):
    """appendfsync=always: the append-only file is synced before responses are sent, once for the
    commands of all clients in one round."""

    key: ClassVar[str] = "redis-streams"
    title: ClassVar[str] = "Redis Streams"
    family: ClassVar[str] = "redis"
    durability: ClassVar[str] = "disk"
    package: ClassVar[str] = "redis-server"
    client: ClassVar[str] = "redis"

    def launch(self) -> ServerProcess:
        settings = {
            "port": self.port,
            "bind": HOST,
            "dir": self.home,
            "daemonize": "no",
            "save": "",
            **_IN_FORCE,
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return ServerProcess([program("redis-server"), *options], self.home / "server.log")

    def answers(self) -> bool:
        from redis.exceptions import ConnectionError

        with connect(self.port) as redis:
            try:
                return bool(redis.ping())
            except ConnectionError:
                return False

    def check(self) -> str:
        """Checks the settings, and that the append-only file is enabled and its last write
        succeeded."""
        with connect(self.port) as redis:
            settings = {
                name: value for pattern in _IN_FORCE for name, value in redis.config_get(pattern).items()
            }
            facts = redis.info()
        if settings != _IN_FORCE or not facts["aof_enabled"] or facts["aof_last_write_status"] != "ok":
            raise ServerFailed(f"redis-server is not as durable as configured: {settings}, {facts}")
        return str(facts["redis_version"])

    def fill(self, queue: str, records: int, *, delay_s: float | None = None) -> None:
        with connect(self.port) as redis:
            redis.xgroup_create(queue, GROUP, id="0", mkstream=True)
            for first in range(0, records, _FILL_AT_ONCE):
                pipeline = redis.pipeline(transaction=False)
                for number in range(first, min(first + _FILL_AT_ONCE, records)):
                    pipeline.xadd(queue, {"value": payload(number)})
                pipeline.execute()
        self.check()

    def consumer(self, queue: str) -> Client:
        return Client(work, {"port": self.port, "queue": queue})

    def failing_consumer(self, queue: str, delay_s: float) -> Client:
        return Client(work_failing, {"port": self.port, "queue": queue, "delay_s": delay_s})

    def left(self, queue: str) -> int:
        with connect(self.port) as redis:
            (group,) = redis.xinfo_groups(queue)
            return int(group["lag"]) + int(group["pending"]) + int(redis.zcard(_waiting(queue)))

    def drop(self, queue: str) -> None:
        with connect(self.port) as redis:
            redis.delete(queue, _waiting(queue))


class RedisStreamsPipelined(RedisStreams):
    """The acknowledgement is sent with the request for the next record, as by a kbroker client: one
    round trip per record instead of two. This is not the loop of Redis's documentation, but users
    may write it."""

    key: ClassVar[str] = "redis-pipelined"
    delays: ClassVar[bool] = False
    title: ClassVar[str] = "Redis Streams, pipelined"

    def consumer(self, queue: str) -> Client:
        return Client(work_pipelined, {"port": self.port, "queue": queue})


def work(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process."""
    queue, name = arguments["queue"], f"worker-{link.number}"
    with connect(arguments["port"]) as redis:
        redis.ping()
        link.begin()
        while link.running:
            record_id = _record_id(redis.xreadgroup(GROUP, name, {queue: ">"}, count=1, block=_BLOCK_MS))
            if record_id is None:
                link.check_patience()
                continue
            _count(link, redis.xack(queue, GROUP, record_id))
    link.send_report()


def work_pipelined(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process."""
    queue, name = arguments["queue"], f"worker-{link.number}"
    with connect(arguments["port"]) as redis:
        redis.ping()
        held = None
        link.begin()
        while link.running:
            pipeline = redis.pipeline(transaction=False)
            if held is not None:
                pipeline.xack(queue, GROUP, held)
            pipeline.xreadgroup(GROUP, name, {queue: ">"}, count=1, block=_BLOCK_MS)
            *acknowledged, streams = pipeline.execute()
            for answer in acknowledged:
                _count(link, answer)
            held = _record_id(streams)
            if held is None:
                link.check_patience()
        if held is not None:
            _count(link, redis.xack(queue, GROUP, held))
    link.send_report()


def work_failing(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process. Redis has no delays, so one transaction moves a failed job from the stream
    to a sorted set, ordered by due time. Between two jobs, but at most every few milliseconds, each
    worker moves due jobs back."""
    queue, name, delay_ms = arguments["queue"], f"worker-{link.number}", int(arguments["delay_s"] * 1000)
    failing = Failing(link)
    with connect(arguments["port"]) as redis:
        put_back, put_off = redis.register_script(_PUT_BACK), redis.register_script(_PUT_OFF)
        link.begin()
        looked_s = 0.0
        while link.running:
            if (now_s := time.monotonic()) - looked_s > _LOOK_AGAIN_MS / 1000:
                put_back(keys=[queue, _waiting(queue)], args=[_AT_ONCE])
                looked_s = now_s
            record = _record(redis.xreadgroup(GROUP, name, {queue: ">"}, count=1, block=_LOOK_AGAIN_MS))
            if record is None:
                link.check_patience()
                continue
            record_id, fields = record
            value = fields[b"value"]
            if b"again" in fields:
                failing.came_again(value)
                _check(redis.xack(queue, GROUP, record_id))
                failing.done()
            else:
                failing.fails(value)
                _check(put_off(keys=[queue, _waiting(queue)], args=[GROUP, record_id, value, delay_ms]))
                failing.failed()
    link.send_report()


def _waiting(queue: str) -> str:
    """The sorted set beside a stream."""
    return f"{queue}-waiting"


def _record_id(streams: Any) -> bytes | None:  # noqa: ANN401
    """The record id in XREADGROUP's response, which has at most one record."""
    record = _record(streams)
    return None if record is None else record[0]


def _record(streams: Any) -> tuple[bytes, Mapping[bytes, bytes]] | None:  # noqa: ANN401
    """The record id and fields."""
    if not streams:
        return None
    ((_, ((record_id, fields),)),) = streams
    return bytes(record_id), fields


def _count(link: Link, answer: object) -> None:
    _check(answer)
    count_one(link)


def _check(answer: object) -> None:
    """Checks XACK's response: 1 means that the record was pending, and not acknowledged before."""
    if answer != 1:
        raise ServerFailed(f"XACK answered {answer}")


def connect(port: int) -> redis.Redis:
    import redis

    return redis.Redis(HOST, port, single_connection_client=True, decode_responses=False)
