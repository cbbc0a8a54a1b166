"""Producers, consumers, and tools for offsets and logs, at both brokers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_tools.java import (
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSOLE_SHARE_CONSUMER,
    CONSUMER_PERFORMANCE,
    DELETE_RECORDS,
    GET_OFFSETS,
    MISSING,
    SHARE_CONSUMER_PERFORMANCE,
    TOOLS,
    TOPICS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_SHARE_CONSUMER,
)
from tests.kafka_tools.side_by_side.pair import ADDRESS, Broker, Pair, Same

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
VERIFIABLE_PRODUCER = f"{TOOLS}.VerifiableProducer"
PATIENCE = "--timeout-ms 30000"


def test_console_tools(pair: Pair) -> None:
    with pair.chapter("console tools") as same:
        topic = "--topic console"
        same("create", TOPICS, f"--create {topic}")
        same(
            "set up the queue",
            f"{TOOLS}.ConfigCommand",
            "--group queue --alter --add-config share.auto.offset.reset=earliest",
        )
        parsed = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
        given = "a:1,b:2\tk1\tv1\na:1\tk2\tNULL\nNULL\tNULL\tv3\n"
        properties = " ".join(f"--reader-property {each}" for each in parsed)
        same("produce", CONSOLE_PRODUCER, f"{topic} {properties}", given=given)
        same("produce plainly", CONSOLE_PRODUCER, topic, given="v4\nv5\n")
        same(
            "produce to a bad name",
            CONSOLE_PRODUCER,
            "--topic a/b --command-property max.block.ms=5000",
            given="x\n",
        )
        shown = ("print.key", "print.headers", "print.offset", "print.partition", "print.epoch")
        shows = " ".join(f"--formatter-property {each}=true" for each in shown)
        begin = f"--from-beginning --max-messages 5 {PATIENCE}"
        same("consume", CONSOLE_CONSUMER, f"{topic} {begin} {shows}")
        same(
            "consume from an offset",
            CONSOLE_CONSUMER,
            f"{topic} --partition 0 --offset 3 --max-messages 2 {PATIENCE} {shows}",
        )
        for protocol in ("classic", "consumer"):
            same(
                f"consume in a {protocol} group",
                CONSOLE_CONSUMER,
                f"{topic} {begin} --group of-{protocol} --command-property group.protocol={protocol} {shows}",
            )
        same("consume a missing topic", CONSOLE_CONSUMER, "--topic a/b --timeout-ms 5000")
        work = f"{topic} --group queue {PATIENCE} {shows} --formatter-property print.delivery=true"
        same("release", CONSOLE_SHARE_CONSUMER, f"{work} --max-messages 5 --release")
        same("reject", CONSOLE_SHARE_CONSUMER, f"{work} --max-messages 5 --reject")
        same(
            "nothing is left",
            CONSOLE_SHARE_CONSUMER,
            f"{topic} --group queue --max-messages 1 --timeout-ms 3000",
        )


def test_verifiable_tools(pair: Pair) -> None:
    with pair.chapter("verifiable tools") as same:
        topic = "--topic verified"
        same("create", TOPICS, f"--create {topic}")
        same("produce", VERIFIABLE_PRODUCER, f"{topic} --max-messages 20 --value-prefix 7")
        for protocol in ("classic", "consumer"):
            same(
                f"consume in a {protocol} group",
                VERIFIABLE_CONSUMER,
                f"{topic} --group-id verified-{protocol} --max-messages 20 "
                f"--reset-policy earliest --group-protocol {protocol}",
            )
        for mode in ("sync", "auto"):
            same(
                f"share, {mode}",
                VERIFIABLE_SHARE_CONSUMER,
                f"{topic} --group-id verified-{mode} --max-messages 20 "
                f"--acknowledgement-mode {mode} --offset-reset-strategy earliest",
            )
        same(
            "share, with a pattern",
            VERIFIABLE_SHARE_CONSUMER,
            f"{topic} --group-id verified-pattern --max-messages 25 "
            "--acknowledgement-mode sync --offset-reset-strategy earliest "
            "--ack-pattern accept,accept,accept,release",
        )


def test_measuring_tools(pair: Pair) -> None:
    with pair.chapter("measuring tools") as same:
        topic = "--topic measured"
        same("create", TOPICS, f"--create {topic}")
        same(
            "produce",
            f"{TOOLS}.ProducerPerformance",
            f"{topic} --num-records 100 --record-size 10 --throughput -1",
            measured=True,
        )
        for protocol in ("classic", "consumer"):
            same(
                f"consume, {protocol}",
                CONSUMER_PERFORMANCE,
                f"{topic} --num-records 100 --timeout 30000 --command-property group.protocol={protocol}",
                measured=True,
            )
        same(
            "set up the queue",
            f"{TOOLS}.ConfigCommand",
            "--group measured --alter --add-config share.auto.offset.reset=earliest",
        )
        same(
            "share",
            SHARE_CONSUMER_PERFORMANCE,
            f"{topic} --group measured --num-records 100 --timeout 30000",
            measured=True,
        )
        same(
            "end to end",
            f"{TOOLS}.EndToEndLatency",
            f"{topic} --num-records 20 --producer-acks all --record-size 50",
            measured=True,
        )


def test_offsets_and_logs(pair: Pair, tmp_path: Path) -> None:
    with pair.chapter("offsets and logs") as same:
        same("create", TOPICS, "--create --topic logs --partitions 2")
        for broker in (pair.kafka, pair.kbroker):
            _produce(broker)
        _offsets(same)
        for what, row in (
            ("some", {"partition": 0, "offset": 3}),
            ("all", {"partition": 1, "offset": -1}),
            ("beyond the end", {"partition": 0, "offset": 100}),
        ):
            file = tmp_path / f"{what}.json"
            file.write_text(json.dumps({"partitions": [{"topic": "logs", **row}], "version": 1}))
            same(f"delete {what}", DELETE_RECORDS, f"--offset-json-file {file}")
        same("offsets after", GET_OFFSETS, "--topic logs --time earliest")
        same("log dirs", f"{TOOLS}.LogDirsCommand", "--describe --topic-list logs")
        same("log dirs of another", f"{TOOLS}.LogDirsCommand", "--describe --topic-list missing")
        same("log dirs of another broker", f"{TOOLS}.LogDirsCommand", "--describe --broker-list 7")


def _produce(broker: Broker) -> None:
    """A batch of ten records for each partition, the last one with the greatest time."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1000})
    begin_ms = int(time.time() * 1000) - 60_000
    for number in range(20):
        producer.produce("logs", b"x" * 100, partition=number % 2, timestamp=begin_ms + number)
    assert producer.flush(60) == 0


def _offsets(same: Same) -> None:
    for moment in ("earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "0"):
        same(f"offsets of {moment}", GET_OFFSETS, f"--topic logs --time {moment}")
    same("offsets of the only ones", GET_OFFSETS, "--topic-partitions logs:1,log.:0-1")
    same("offsets of a missing topic", GET_OFFSETS, "--topic missing")
    same("offsets of a missing partition", GET_OFFSETS, "--topic logs --partitions 7")
    same(
        "offsets by address",
        GET_OFFSETS,
        f"--bootstrap-server {ADDRESS} --topic logs --exclude-internal-topics",
    )
