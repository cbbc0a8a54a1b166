"""Known differences of tools for clusters."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kafka_tools.side_by_side.known import ONE_NODE, WORDING, Known, known

_FIXED = "all parts of kbroker rely on the levels of its features, so they are fixed"
_APIS = r"(UnregisterBroker|AddRaftVoter|RemoveRaftVoter|Streams\w+|UnregisterController)"
_UNSERVED = "kbroker serves neither streams groups nor changes of the cluster"

KNOWN: Sequence[Known] = (
    known(
        "versions and features",
        "api versions",
        "neither of them serves Produce 0 to 2; Kafka lists them",
        [r"Produce\(0\): 0 to 13 .*"],
        [r"Produce\(0\): 3 to 13 .*"],
    ),
    known(
        "versions and features",
        "api versions",
        _UNSERVED,
        [rf"{_APIS}\(\d+\): \d.*"],
        [rf"{_APIS}\(\d+\): UNSUPPORTED,?"],
    ),
    known(
        "versions and features",
        "describe",
        _UNSERVED,
        [r"Feature: (eligible\.leader\.replicas|kraft|streams)\.version .*"],
    ),
    known(
        "versions and features",
        "describe",
        "a feature of kbroker's own",
        ours=[r"Feature: kbroker\.reject\.reason .*"],
    ),
    known(
        "versions and features",
        "upgrade*",
        WORDING,
        [r".*Invalid update version \d for feature .*\. Local controller 1 .*"],
        [r".*Invalid update version \d for feature .*\. This broker .*"],
    ),
    known(
        "versions and features",
        "*, planned",
        _FIXED,
        [".* can be (downgraded to 1|disabled).", "exit code 0"],
        [
            r"Can not (downgrade|disable) .* This broker has version \d, and cannot change it.",
            "1 out of 1 .* failed.",
            "exit code 1",
        ],
    ),
    known(
        "cluster and quorum",
        "unregister another",
        ONE_NODE,
        [".*Broker ID 7 is not currently registered", "exit code 1"],
        ["The target cluster does not support the broker unregistration API.", "exit code 0"],
    ),
    known(
        "cluster and quorum",
        "quorum",
        "kbroker's clients and its quorum have one port",
        [r'CurrentVoters: \[{"id": 1, "endpoints": \["CONTROLLER://.*"\]}\]'],
        [r'CurrentVoters: \[{"id": 1, "endpoints": \["PLAINTEXT://ADDRESS"\]}\]'],
    ),
    known(
        "cluster and quorum",
        "quorum",
        "kbroker has no log of metadata",
        [r"HighWatermark: \d+"],
        ["HighWatermark: 1"],
    ),
    known(
        "cluster and quorum",
        "replication*",
        "kbroker has no log of metadata",
        [r"1 A{22} \d+ 0 MS.* Leader"],
        ["1 A{22} 1 0 MS.* Leader"],
    ),
    known(
        "cluster and quorum",
        "remove a controller",
        ONE_NODE,
        [".*Cluster doesn't support removing voter because the kraft.version feature is 0"],
        [".*The node does not support REMOVE_RAFT_VOTER"],
    ),
    known(
        "offsets and logs",
        "log dirs",
        "kbroker removes a segment with its last record; Kafka keeps it",
        [r'.*"logs-1", "size": [1-9]\d*, .*'],
        ['.*"logs-1", "size": 0, .*'],
    ),
    known(
        "elections and reassignments",
        "elect * of a missing one",
        WORDING,
        [".*UnknownTopicOrPartitionException: No such topic as missing"],
        [".*UnknownTopicOrPartitionException: There is no such partition."],
    ),
)
