"""Every API of Kafka is either served or listed as not served, with Kafka's name."""

from __future__ import annotations

from kio.schema.index import api_key_map

from kbroker.api import APIS
from kbroker.api.unserved import UNSERVED
from tests.checks.apis_doc import PAGE, name_of, rendered

REMOVED = {4: "LeaderAndIsr", 5: "StopReplica", 6: "UpdateMetadata", 7: "ControlledShutdown"}
"""Kafka still has these names, for brokers of other versions, and kio has not."""
NEWER = {93: "StreamsGroupTopologyDescriptionUpdate", 94: "UnregisterController"}
"""Only in Kafka 4.4: kio has no messages of them yet."""


def test_every_api_of_kafka_is_served_or_listed() -> None:
    served, listed = APIS.keys(), UNSERVED.keys()
    assert not served & listed
    assert served | listed == api_key_map.keys() | REMOVED.keys() | NEWER.keys()


def test_names_are_those_of_kafka() -> None:
    of_kio = {key: name_of(name) for key, name in api_key_map.items()}
    names = {key: each.name for key, each in UNSERVED.items()}
    assert names == {key: (of_kio | REMOVED | NEWER)[key] for key in UNSERVED}
    assert {api.key: api.module for api in APIS.values()} == {key: api_key_map[key] for key in APIS}


def test_the_page_has_the_present_tables() -> None:
    assert PAGE.read_text() == rendered(), "run `make docs`"
