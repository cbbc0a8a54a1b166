"""Bounds for the figures of tests/checks/structure.py, and lists of what is found and stays, each
with its reason. A bound may fall; a commit that raises one needs a reason."""

from __future__ import annotations

from functools import cache

import pytest

from tests.checks.structure import MANY_NAMES, MAX_PARAMETERS, OTHERS, ROOT, figures, general

BOUNDS = {
    "import circles": 0,
    "loose modules at the top": 8,
    # With transactions/ and compaction/: each from broker.py, and to commits/ and logs/. With
    # security/: from broker.py and connection.py, and to commits/.
    "arrows in broker/": 34,
    "arrows in groups/": 30,
    "arrows in storage/": 17,
    f"constructors of more than {MAX_PARAMETERS} parameters": 0,
    "done-closures": 0,
    "getattr on an SPI": 0,
    "work_in": 0,
    "attributes of parts set after construction": 0,
    "files above 600 lines": 0,
}
_ONE_API = "one file for each API; the two kinds of groups share a part"
_LAZY = "imported when it is needed, as loading what it needs takes long"
_TABLE = "one module for each subject of the table of broker settings"
_WALKED = "over batches as plain tuples (Walked): one for each batch of a fetch"
_SUITE = "a part of a contract suite, which would be above 600 lines"
_STORED = "the stored form of the same thing"

SMALL_MODULES = {
    "kbroker.api.consumer_group_describe of kbroker.api.share_group_describe": _ONE_API,
    "kbroker.api.consumer_group_heartbeat of kbroker.api.share_group_heartbeat": _ONE_API,
    "kbroker.broker.logs.payload_arrays of kbroker.broker.logs.payload_check": _LAZY,
    "kbroker.broker.queues.filters of kbroker.broker.queues.share_partitions": (
        "the settings that keep records back in one place; a fetch knows their base class alone"
    ),
    "kbroker.cli.acls.places of kbroker.cli.acls.command": _LAZY,
    "kbroker.cli.detaching of kbroker.cli.start": "only --detach imports it",
    "kbroker.compaction.offset_arrays of kbroker.compaction.offset_map": _LAZY,
    "kbroker.formats.zstd of kbroker.formats.compression": (
        "the client's distribution has another module in its place"
    ),
    "kbroker.metrics_export.consumer_numbers of kbroker.metrics_export.exposition": (
        "one module of numbers for each part of the broker"
    ),
    "kbroker.security.plain of kbroker.security.sasl": "one module for each SASL mechanism",
    "kbroker.server.pkcs12 of kbroker.server.tls": _LAZY,
    "kbroker.settings.broker_contradictions of kbroker.settings.broker": (
        "test_settings.py looks outside the tables for code that reads a setting"
    ),
    "kbroker.settings.broker_own of kbroker.settings.broker": _TABLE,
    "kbroker.settings.broker_quotas of kbroker.settings.broker": _TABLE,
    "kbroker.settings.broker_sasl of kbroker.settings.broker": _TABLE,
    "kbroker.share.throttle of kbroker.share.acquire": (
        "arithmetic over two columns, with the table in its head"
    ),
    "kbroker.testing.broker of kbroker.testing.pytest_plugin": "a public module, for fixtures of users",
}
BASES = {
    "kbroker.broker.logs.reading.ReadablePartition of kbroker.broker.logs.partition.Partition": (
        "the reading half, which tests of fetches open alone"
    ),
    "kbroker.security.acls._Fields of kbroker.security.acls.Acl": (
        "only a subclass of a NamedTuple can have a cached property"
    ),
    "kbroker.share.columns.WindowColumns of kbroker.share.in_flight.InFlightWindow": (
        "what is read and what changes; together above 600 lines"
    ),
    "kbroker.testing.log_removal_contract.LogRemovalContract of "
    "kbroker.testing.log_store_contract.LogStoreContract": _SUITE,
    "kbroker.testing.log_replace_contract.LogReplaceContract of "
    "kbroker.testing.log_store_contract.LogStoreContract": _SUITE,
    "kbroker.testing.on_disk_contract.OnDiskContract of "
    "kbroker.testing.state_store_contract.StateStoreContract": _SUITE,
}
UNPACKINGS = {
    "kbroker.broker.queues.acquiring.Acquiring._unopened": _WALKED,
    "kbroker.broker.queues.acquiring.Acquiring._take": _WALKED,
    "kbroker.broker.queues.loaded.CommittedLog._marked": _WALKED,
    "kbroker.broker.queues.expiry.Expiry.give_up_parked": _WALKED,
    "kbroker.broker.queues.fetching.ShareFetch._has_min_bytes": _WALKED,
    "kbroker.broker.queues.scanner.Scanner._schedules": _WALKED,
    "kbroker.broker.queues.scanner.due_now": _WALKED,
    "kbroker.broker.queues.sliced_batches.walk": "the fields of a header: one for each batch of a fetch",
    "kbroker.broker.queues.sliced_batches.control_of": _WALKED,
    "kbroker.broker.queues.sliced_batches.split": _WALKED,
    "kbroker.broker.queues.sliced_batches.whole_batches": _WALKED,
    "kbroker.protocol.long_responses.Packing._message_in_turns": "for each field of each row",
    "kbroker.protocol.responses._fetch_row_head": "for each partition of a Fetch response",
    "kbroker.protocol.responses.pack_share_fetch": "for each partition of a ShareFetch response",
    "kbroker.storage.segment.index._scan_chunk": "a start after a crash reads millions of batches",
}
TWINS = {
    "ClassicMember in kbroker.formats.group_records, kbroker.groups.classic.state": _STORED,
    "ResourceType in kbroker.formats.state_values, kbroker.security.acls": (
        "two enumerations of Kafka with this name, of configs and of ACLs, with other numbers"
    ),
    "Shelf in kbroker.formats.parked_records, kbroker.testing.parking_model": _STORED,
    "Topic in kbroker.broker.logs.topics, kbroker.client.admin, kbroker.formats.state_values": _STORED,
    "TopicPartition in kbroker.client.group_admin, kbroker.share.persister": (
        "by name, as clients know it, and by id; persisters elsewhere import the second"
    ),
    "TopicPartitions in kbroker.formats.share_records, kbroker.groups.share.messages": _STORED,
}
LISTED = {
    "small modules with one importer": SMALL_MODULES,
    "bases of one class": BASES,
    f"unpackings of {MANY_NAMES} names": UNPACKINGS,
    "public class names twice": TWINS,
}


_OF_OTHERS = {
    # ShareConsumer's parameters are the settings of a consumer.
    "kbroker_client": {"constructors": 1, "public class names": 1, "small modules": 7, "unpackings": 1},
    "kbroker_spark": {"public class names": 1},
    # The command line loads its commands, which take its options and helpers from it.
    "kbroker_pipeline": {"import circles": 1, "public class names": 1, "small modules": 1, "unpackings": 1},
    # Suites and studies are programs of their own, and each has its own rows.
    "perf": {"public class names": 11, "small modules": 4},
}
"""By the first words of a figure; 0 for the others."""


@cache
def found() -> dict[str, list[str]]:
    return figures()


@pytest.mark.parametrize("figure", BOUNDS)
def test_the_structure_stays_within_its_bounds(figure: str) -> None:
    assert len(found()[figure]) <= BOUNDS[figure], "\n".join(found()[figure])


@pytest.mark.parametrize("figure", LISTED)
def test_all_that_is_found_is_listed_with_a_reason(figure: str) -> None:
    assert sorted(found()[figure]) == sorted(LISTED[figure])


@pytest.mark.parametrize("package", OTHERS)
def test_the_other_packages_stay_within_their_bounds(package: str) -> None:
    every = general(ROOT / OTHERS[package], package)
    bounds = {
        figure: next((most for name, most in _OF_OTHERS[package].items() if figure.startswith(name)), 0)
        for figure in every
    }
    too_many = {figure: names for figure, names in every.items() if len(names) > bounds[figure]}
    assert too_many == {}
