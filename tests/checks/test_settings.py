"""Settings and their documentation are the same list, and code reads every setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.settings.altering import CONFIGS, Scope
from kbroker.settings.definition import ConfigDef
from tests.checks.settings_doc import SETTINGS_DOC, render

PACKAGE = Path(__file__).parents[2] / "kbroker"
TABLES = {
    "settings/broker.py",
    "settings/topic_configs.py",
    "settings/group_configs.py",
    "settings/broker_cluster.py",
    "settings/broker_groups.py",
    "settings/broker_share_groups.py",
}
CODE = "\n".join(
    path.read_text() for path in sorted(PACKAGE.rglob("*.py")) if str(path.relative_to(PACKAGE)) not in TABLES
)
CONSTANTS = {
    setting: constant
    for table in TABLES
    for constant, setting in re.findall(
        r'^([A-Z_]+)(?:: Final)? = "([a-z.]+)"$', (PACKAGE / table).read_text(), re.MULTILINE
    )
}
"""The names that tables give to settings for other modules."""
BOUNDED = ("group.share.", "group.consumer.")
READ_IN_TABLES = {
    # Bounds and units of other settings, which settings/broker.py, settings/topic.py and
    # settings/group.py turn into the effective ones.
    name
    for scope in (Scope.TOPIC, Scope.GROUP)
    for each in CONFIGS[scope].values()
    for synonym, _ in each.synonyms
    for name in (
        synonym,
        *(synonym.replace(kind, f"{kind}{bound}.") for kind in BOUNDED for bound in ("min", "max")),
    )
} | {"internal.segment.bytes"}


def working(scope: Scope) -> list[ConfigDef]:
    return [
        each
        for each in CONFIGS[scope].values()
        if not each.only and not each.no_effect and each.name not in READ_IN_TABLES
    ]


def test_the_document_is_made_from_the_tables() -> None:
    assert SETTINGS_DOC.read_text() == render(), "run `make docs`"


@pytest.mark.parametrize("scope", Scope)
def test_every_setting_is_read(scope: Scope) -> None:
    assert [each.name for each in working(scope) if not is_read(each.name)] == []


@pytest.mark.parametrize("scope", Scope)
def test_no_code_reads_a_setting_without_effect(scope: Scope) -> None:
    without = [each.name for each in CONFIGS[scope].values() if each.no_effect]
    assert [name for name in without if is_read(name)] == []
    assert bool(without) == (scope in (Scope.TOPIC, Scope.GROUP))


def is_read(name: str) -> bool:
    return f'"{name}"' in CODE or (name in CONSTANTS and CONSTANTS[name] in CODE)


def test_every_setting_explains_itself() -> None:
    for table in CONFIGS.values():
        for each in table.values():
            assert each.doc.endswith((".", ")")), each.name
            assert "|" not in each.doc, each.name
            assert bool(each.only) == bool(each.reason), each.name
            assert not (each.only and each.no_effect), each.name
            assert not each.no_effect.endswith("."), each.name
