"""The APIs of Apache Kafka 4.4 that kbroker does not serve, with the reason: for the log line when
a client sends one, and for docs/apis.md, which is generated from this table
(`tests/checks/apis_doc.py`)."""

from __future__ import annotations

from typing import Final, NamedTuple

_QUORUM: Final = "between the controllers of a cluster; there is one node"
_BROKERS: Final = "between brokers and controllers; there is one node"
_LEAVING: Final = "there is no cluster to leave"
_VOTERS: Final = "the quorum has one voter, this node"
_STREAMS: Final = "groups of Kafka Streams (KIP-1071)"
_REMOVED: Final = "removed in Kafka 4.0"


class Unserved(NamedTuple):
    name: str
    why: str


UNSERVED: Final[dict[int, Unserved]] = {
    4: Unserved("LeaderAndIsr", _REMOVED),
    5: Unserved("StopReplica", _REMOVED),
    6: Unserved("UpdateMetadata", _REMOVED),
    7: Unserved("ControlledShutdown", _REMOVED),
    52: Unserved("Vote", _QUORUM),
    53: Unserved("BeginQuorumEpoch", _QUORUM),
    54: Unserved("EndQuorumEpoch", _QUORUM),
    56: Unserved("AlterPartition", _BROKERS),
    58: Unserved("Envelope", _BROKERS),
    59: Unserved("FetchSnapshot", _QUORUM),
    62: Unserved("BrokerRegistration", _BROKERS),
    63: Unserved("BrokerHeartbeat", _BROKERS),
    64: Unserved("UnregisterBroker", _LEAVING),
    67: Unserved("AllocateProducerIds", _BROKERS),
    70: Unserved("ControllerRegistration", _BROKERS),
    73: Unserved("AssignReplicasToDirs", _BROKERS),
    80: Unserved("AddRaftVoter", _VOTERS),
    81: Unserved("RemoveRaftVoter", _VOTERS),
    82: Unserved("UpdateRaftVoter", _VOTERS),
    88: Unserved("StreamsGroupHeartbeat", _STREAMS),
    89: Unserved("StreamsGroupDescribe", _STREAMS),
    93: Unserved("StreamsGroupTopologyDescriptionUpdate", _STREAMS),
    94: Unserved("UnregisterController", _LEAVING),
}
"""By API key."""


def unserved_line(api_key: int, client_id: str | None) -> tuple[str, str]:
    """The log line about a request of an API that is not served, and its kind without what the
    client chooses."""
    client = "a client without an id" if client_id is None else f"client {client_id}"
    found = UNSERVED.get(api_key)
    if found is None:
        return f"unknown api key {api_key}, from {client}", "api key"
    return f"{found.name} (API {api_key}) is not served ({found.why}), from {client}", f"API {found.name}"
