"""Options of the source "kbroker": accepted values, and refusals with their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker_spark.errors import SourceError
from kbroker_spark.offsets import Edge, Offsets, Timestamp, Timestamps, TopicPartition
from kbroker_spark.options import (
    OPTIONS,
    REFUSED,
    WITHOUT_EFFECT,
    Assign,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    parse,
)

A0 = TopicPartition("a", 0)


def batch(**options: str) -> ReadOptions:
    return parse({"path": "/data", "subscribe": "a", **options}, streaming=False)


def stream(**options: str) -> ReadOptions:
    return parse({"path": "/data", "subscribe": "a", **options}, streaming=True)


def selecting(**options: str) -> ReadOptions:
    return parse({"path": "/data", **options}, streaming=False)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    assert batch() == ReadOptions("/data", Subscribe(("a",)), Edge.EARLIEST, "startingOffsets")
    assert stream() == ReadOptions("/data", Subscribe(("a",)), Edge.LATEST, "startingOffsets")
    found = batch()
    assert found.fail_on_data_loss
    assert not found.include_headers
    assert found.max_trigger_delay_ms == 900_000


def test_names_have_no_case() -> None:
    found = parse(
        {"PATH": "/data", "SubscribePATTERN": "x.*", "STARTINGoffsets": "Earliest", "includeheaders": "TRUE"},
        streaming=True,
    )
    assert found.selection == SubscribePattern("x.*")
    assert found.starting is Edge.EARLIEST
    assert found.include_headers


def test_selections() -> None:
    assert selecting(subscribe=" a, b ,,a").selection == Subscribe(("a", "b"))
    assert selecting(subscribePattern=" orders-.* ").selection == SubscribePattern("orders-.*")
    assigned = selecting(assign='{"b":[0],"a":[2,0,2]}').selection
    assert assigned == Assign((A0, TopicPartition("a", 2), TopicPartition("b", 0)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {},
            "One of the following options must be specified for the source kbroker: subscribe, "
            "subscribePattern, assign",
        ),
        ({"subscribe": "a", "assign": "{}"}, "Only one of the following options can be specified"),
        (
            {"subscribe": " , "},
            "No topics to subscribe to as specified value for option 'subscribe' is ' , '",
        ),
        ({"subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": "a{99999999999}"}, "not a regular expression"),
        ({"assign": "a"}, "No topicpartitions to assign as specified value for option 'assign' is 'a'"),
        ({"assign": "{}"}, "No topicpartitions to assign"),
        ({"assign": '{"a":0}'}, "expected e.g."),
        ({"assign": '{"a":["0"]}'}, "expected e.g."),
        ({"assign": '{"a":[-1]}'}, "expected e.g."),
        ({"subscribe": "a", "paths": '["/a","/b"]'}, "one data directory"),
    ],
)
def test_refused_selections(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError) as caught:
        selecting(**options)
    assert text in str(caught.value)


def test_a_path_is_needed() -> None:
    with pytest.raises(SourceError, match=r"^Option 'path' must be specified: load\(DATA_DIR\)"):
        parse({"subscribe": "a", "kafka.bootstrap.servers": "here:9092"}, streaming=None)


def test_positions_and_their_order() -> None:
    assert batch(startingOffsets='{"a":{"0":23}}').starting == Offsets({A0: 23})
    assert stream(startingOffsets='{"a":{"0":-1}}').starting == Offsets({A0: -1})
    by_time = batch(startingOffsets="earliest", startingOffsetsByTimestamp='{"a":{"0":5}}')
    assert (by_time.starting, by_time.starting_option) == (Timestamps({A0: 5}), "startingOffsetsByTimestamp")
    both = batch(
        startingOffsetsByTimestamp='{"a":{"0":5}}',
        startingTimestamp=" 7 ",
        endingTimestamp="9",
        endingOffsets="latest",
    )
    assert (both.starting, both.starting_option, both.ending, both.ending_option) == (
        Timestamp(7), "startingTimestamp", Timestamp(9), "endingTimestamp",
    )  # fmt: skip
    assert batch(endingOffsets='{"a":{"0":-1}}').ending == Offsets({A0: -1})
    assert batch(startingOffsetsByTimestampStrategy="LATEST").starting_no_match == "latest"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest for batch queries"),
        (
            {"startingOffsets": "first"},
            "Option 'startingOffsets' is 'first': expected earliest, latest or JSON",
        ),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "expected earliest, latest or JSON"),
        (
            {"startingTimestamp": "yesterday"},
            "Option 'startingTimestamp' is 'yesterday': expected milliseconds since 1970",
        ),
        ({"endingTimestamp": "-1"}, "expected milliseconds"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "expected JSON such as"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "expected error or latest"),
        ({"failOnDataLoss": "maybe"}, "Option 'failOnDataLoss' is 'maybe': expected true or false"),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"minPartitions": "many"}, "expected a positive number"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({"decoder": "rust"}, "expected auto or numpy or c"),
        (
            {"startingOffset": "earliest"},
            "There is no option 'startingoffset': did you mean startingOffsets?",
        ),
        (
            {"kafka.isolation.level": "serializable"},
            "Option 'kafka.isolation.level' is 'serializable': expected read_uncommitted or read_committed",
        ),
        (
            {"isolation.level": "read_committed"},
            "There is no option 'isolation.level': did you mean kafka.isolation.level?",
        ),
        ({"kafka.isolationLevel": "read_committed"}, "did you mean kafka.isolation.level?"),
    ],
)
def test_refused_in_batch_queries(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError) as caught:
        batch(**options)
    assert text in str(caught.value)


def test_isolation_levels() -> None:
    assert not batch().read_committed
    assert batch(**{"kafka.isolation.level": "read_uncommitted"}) == batch()
    assert batch(**{"Kafka.Isolation.Level": "read_committed"}).read_committed
    assert stream(**{"kafka.isolation.level": " READ_COMMITTED "}).read_committed
    with pytest.raises(SourceError, match="expected read_uncommitted or read_committed"):
        stream(**{"kafka.isolation.level": "committed"})


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(option: str) -> None:
    with pytest.raises(SourceError, match=f"^{option} not valid in streaming queries$"):
        stream(**{option: "latest"})


def test_sizes_of_triggers() -> None:
    found = stream(maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10", maxTriggerDelay="0")
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger, found.max_trigger_delay_ms) == (
        100,
        10,
        0,
    )
    for text, ms in {"15m": 900_000, "2 h": 7_200_000, "500": 500, "30s": 30_000, "1d": 86_400_000}.items():
        assert stream(maxTriggerDelay=text).max_trigger_delay_ms == ms
    with pytest.raises(
        SourceError, match=r"minOffsetPerTrigger\(5\) is higher than the maxOffsetsPerTrigger\(4\)"
    ):
        stream(maxOffsetsPerTrigger="4", minOffsetsPerTrigger="5")
    with pytest.raises(SourceError, match="expected a duration such as 15m"):
        stream(maxTriggerDelay="soon")


def test_what_has_no_effect_is_told_or_taken_in_silence() -> None:
    assert batch(maxOffsetsPerTrigger="100").ignored == (
        "option maxOffsetsPerTrigger has no effect in batch queries",
    )
    consumer = {
        "kafka.bootstrap.servers": "here:9092",
        "kafka.group.id": "g",
        "kafka.security.protocol": "SSL",
        "somebodyElses": "x",
    }
    assert batch(**consumer, **dict.fromkeys(WITHOUT_EFFECT, "1")) == batch()


@pytest.mark.parametrize("option", REFUSED)
def test_consumer_settings_that_would_mean_something_else_are_refused(option: str) -> None:
    with pytest.raises(
        SourceError, match=rf"^Kafka option '{option.removeprefix('kafka.')}' is not supported\. \w+"
    ):
        batch(**{option: "x"})


def test_before_the_kind_of_query_is_known_only_what_holds_for_both_is_refused() -> None:
    both = {"path": "/data", "subscribe": "a", "startingOffsets": "latest", "endingOffsets": "latest"}
    assert parse(both, streaming=None).starting is Edge.LATEST
    with pytest.raises(SourceError, match="minPartitions"):
        parse({**both, "minPartitions": "0"}, streaming=None)


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = page.partition("## Records of topics")[2].partition("\n## ")[0]
    named = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in line.split("|")[1].replace("`", "").replace(" ", "").split(",")
    }
    assert {*OPTIONS, *WITHOUT_EFFECT, *REFUSED} - named == set()
