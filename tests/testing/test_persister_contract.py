"""The persister contract suite detects persisters that break their promises: `noop`, which claims
less, and two broken ones."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker import plugins
from kbroker.share.persister import Persister, ReadRequest, ReadResult, Result, WriteRequest
from kbroker.testing.persister_contract import PersisterContract

WITHOUT_PARAMETERS = [
    name
    for name, test in inspect.getmembers(PersisterContract, inspect.isfunction)
    if name.startswith("test_") and set(inspect.signature(test).parameters) == {"self", "tmp_path"}
]


class Around:
    """A persister that delegates everything."""

    def __init__(self, persister: Persister) -> None:
        self._persister = persister

    def __getattr__(self, name: str) -> Any:
        return getattr(self._persister, name)


class ForgetsABatch(Around):
    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        return await self._persister.write(
            group_id, [each._replace(batches=each.batches[:1]) for each in requests]
        )


class MixesGroupsUp(Around):
    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        return await self._persister.read(group_id[:1], requests)


def failing(persister: str, directory: Path) -> list[str]:
    suite = type("Suite", (PersisterContract,), {"name": persister})()
    found = []
    for name in WITHOUT_PARAMETERS:
        try:
            getattr(suite, name)(tmp_path=directory / f"{persister}-{name}")
        except AssertionError:
            found.append(name)
    return found


def test_it_finds_one_that_keeps_nothing(tmp_path: Path) -> None:
    passes = set(WITHOUT_PARAMETERS) - set(failing("noop", tmp_path))
    assert passes == {
        "test_one_result_for_each_row_in_order",
        "test_no_rows_no_results",
        "test_finished_offsets_from_an_offset_on",  # noop has no `stands_from`
    }


@pytest.mark.parametrize(
    ("broken", "promise", "parameters"),
    [
        (MixesGroupsUp, "test_groups_and_partitions_are_independent", {}),
        (
            ForgetsABatch,
            "test_batches_are_combined",
            {
                "stored": [(100, 101, 2, 1), (103, 103, 2, 1)],
                "incoming": [],
                "start": 100,
                "merged": [(100, 101, 2, 1), (103, 103, 2, 1)],
            },
        ),
    ],
)
def test_it_finds_what_is_broken(
    broken: type[Around],
    promise: str,
    parameters: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    getattr(PersisterContract(), promise)(tmp_path=tmp_path / "whole", **parameters)
    monkeypatch.setattr(plugins, "persister_factory", lambda _: lambda context: broken(context.local))
    with pytest.raises(AssertionError):
        getattr(PersisterContract(), promise)(tmp_path=tmp_path / "broken", **parameters)
