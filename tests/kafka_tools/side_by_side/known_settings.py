"""Known differences of kafka-topics, kafka-configs and kafka-client-metrics."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kafka_tools.side_by_side.known import ADVICE, EFFECT, ONE_NODE, WORDING, Known, known

_CLUSTER_MIN_ISR = (
    "Kafka 4.4 writes min.insync.replicas as a default of the cluster for its eligible leader replicas, "
    "which kbroker does not have"
)
_UNTOLD = "kbroker has no receiver of clients' metrics, and refuses settings for one"
_UNUSED = r"(file\.delete|flush\.messages|index|local|preallocate|remote|segment\.index|unclean)"
_OWN = "settings of kbroker's own"

_FAILED_METRICS = (
    "Error while executing (client metrics|config) command .*",
    ".*InvalidRequestException: Unsupported config resource type 16: kbroker has .*",
    "exit code 1",
)

KNOWN: Sequence[Known] = (
    known(
        "topics",
        "create a bad name",
        WORDING,
        [".*'a/b' contains one or more characters other than ASCII .*"],
        [".*'a/b' is not 1 to 249 characters out of ASCII .*"],
    ),
    known(
        "topics",
        "create two replicas",
        ONE_NODE,
        [".*only 1 broker.s. are registered or some brokers have all their log directories cordoned."],
        [".*only 1 broker.s. are registered."],
    ),
    known(
        "topics",
        "describe*",
        _CLUSTER_MIN_ISR,
        [r"Topic: (a|b\.1|c) .* Configs: min\.insync\.replicas=1.*"],
        [r"Topic: (a|b\.1|c) .* Configs:.*"],
    ),
    known(
        "configs of topics",
        "describe all",
        EFFECT,
        [
            rf"{_UNUSED}.* "
            "synonyms={DEFAULT_CONFIG:.*}"
        ],
        [rf"{_UNUSED}.* synonyms={{}}"],
    ),
    known(
        "configs of topics",
        "describe all",
        _CLUSTER_MIN_ISR,
        [r"min\.insync\.replicas=1 .* synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:.*}"],
        [r"min\.insync\.replicas=1 .* synonyms={}"],
    ),
    known("configs of topics", "describe all", _OWN, ours=[r"kbroker\..*"]),
    known("configs of groups", "describe all", "kbroker has no streams groups", [r"streams\..*"]),
    known("configs of groups", "describe all", _OWN, ours=[r"kbroker\..*"]),
    known(
        "configs of groups",
        "alter a bad share.isolation.level",
        "values are listed in another order",
        [".*String must be one of: read_committed, read_uncommitted"],
        [".*String must be one of: read_uncommitted, read_committed"],
    ),
    known(
        "configs of groups",
        "alter a bad consumer.session.timeout.ms",
        ADVICE,
        [r".*consumer\.session\.timeout\.ms must be in the range 45000 to 60000 inclusive."],
        [r".*consumer\.session\.timeout\.ms must be greater than or equal to .*45000; to lower that, .*"],
    ),
    known(
        "configs of groups",
        "alter a bad errors.deadletterqueue.topic.name",
        WORDING,
        [r".*errors\.deadletterqueue\.topic\.name: DLQ topic name must not start with '__'"],
        [r".*Invalid value __a for configuration errors\.deadletterqueue\.topic\.name: it must not begin .*"],
    ),
    known("configs of brokers", "of all: describe*", _CLUSTER_MIN_ISR, [r"min\.insync\.replicas=1 .*"]),
    known(
        "configs of brokers",
        "of one: describe",
        "a row of a broker's setting tells that setting only, not the same one in hours",
        ["log.retention.ms=7200000 .*, DEFAULT_CONFIG:log.retention.hours=168}"],
        ["log.retention.ms=7200000 .*{DYNAMIC_BROKER_CONFIG:log.retention.ms=7200000}"],
    ),
    known(
        "configs of brokers",
        "*: alter none",
        "Kafka stores unknown names for its plugins; kbroker takes one for a mistake",
        ["Completed updating .*", "exit code 0"],
        [
            "Error while executing config command .*",
            r".*Cannot update these configs dynamically: \[no.such\].*",
            "exit code 1",
        ],
    ),
    known(
        "configs of brokers",
        "*: alter broker.rack",
        ADVICE,
        [r".*Cannot update these configs dynamically: \[broker\.rack\]"],
        [r".*Cannot update these configs dynamically: \[broker\.rack\]\. kbroker has no such setting.*"],
    ),
    known(
        "configs of brokers",
        "*: alter num.partitions",
        ADVICE,
        [r".*Cannot update these configs dynamically: \[num\.partitions\]"],
        [r".*Cannot update these configs dynamically: \[num\.partitions\]\. It is read at start only: .*"],
    ),
    known(
        "configs of brokers",
        "*: alter message.max.bytes",
        "kbroker reads message.max.bytes at start only; each "
        "topic's own max.message.bytes can be altered at any time",
        ["Completed updating .*", "exit code 0"],
        [
            "Error while executing config command .*",
            r".*Cannot update these configs dynamically: \[message\.max\.bytes\]\. It is read at start .*",
            "exit code 1",
        ],
    ),
    known(
        "client metrics",
        "*alter",
        _UNTOLD,
        ["Altered client metrics .*|Completed updating .*", "exit code 0"],
        _FAILED_METRICS,
    ),
    known(
        "client metrics",
        "*delete",
        _UNTOLD,
        ["Deleted client metrics .*|Completed updating .*", "exit code 0"],
        _FAILED_METRICS,
    ),
    known("client metrics", "list", _UNTOLD, ["m"]),
    known(
        "client metrics",
        "describe*",
        _UNTOLD,
        ["Client metrics configs for m are:", "interval.ms=60000", "match=", "metrics=org.apache"],
        ["The client metric resource m doesn't exist .*"],
    ),
)
