"""UpdateFeatures: levels that are in force, and others."""

from __future__ import annotations

from typing import NamedTuple

from tests.differential.script import Session, Value, script

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
FEATURES = ("share.version", "group.version", "transaction.version", "metadata.version")


class Levels(NamedTuple):
    lowest: int
    highest: int
    final: int


def levels_of(s: Session, on: str = "a") -> dict[str, Levels]:
    answer = s.prepare("api_versions", 4, on=on, client_software_name="x", client_software_version="1")
    final = {row.name: row.max_version_level for row in answer.finalized_features}
    return {
        row.name: Levels(row.min_version, row.max_version, final[row.name])
        for row in answer.supported_features
        if row.name in final
    }


def update(
    s: Session, what: str, *rows: tuple[str, int, int], version: int = 2, only_validate: bool = True,
    on: str = "a", timeout: int = 60_000,
) -> None:  # fmt: skip
    """The codes as a note: levels are not the same in two brokers."""
    updates: list[Value] = [
        {"feature": name, "max_version_level": level}
        | ({"upgrade_type": kind} if version >= 1 else {"allow_downgrade": kind != UPGRADE})
        for name, level, kind in rows
    ]
    more = {"validate_only": only_validate} if version >= 1 else {}
    answer = s.prepare("update_features", version, on=on, feature_updates=updates, timeout=timeout, **more)
    results = [
        [row.feature, row.error_code.name, row.error_message and "text"]
        for row in getattr(answer, "results", ())
    ]
    said = answer.error_message and ("text" if answer.error_code.value else answer.error_message)
    s.note(f"{what}, version {version}", [answer.error_code.name, said, sorted(results)])


@script("BASE-95")
def levels_that_are_in_force(s: Session) -> None:
    levels = levels_of(s)
    for version in (0, 1, 2):
        for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            for name in FEATURES:
                final = levels[name].final
                update(s, f"{name} {kind}", (name, final, kind), version=version)
                if kind == UPGRADE and version:
                    update(s, f"{name} {kind} done", (name, final, kind), version=version,
                           only_validate=False)  # fmt: skip


@script("BASE-95")
def timeouts(s: Session) -> None:
    final = levels_of(s)["share.version"].final
    for timeout in (0, -1, 1):
        for level in (final, 99):
            update(s, f"{timeout} ms for {level - final}", ("share.version", level, UPGRADE), timeout=timeout)


@script("BASE-96")
def levels_that_are_not_supported(s: Session) -> None:
    levels = levels_of(s)
    for version in (0, 1, 2):
        for name in FEATURES:
            for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
                above = levels[name].highest + 1
                update(s, f"{name} above {kind}", (name, above, kind), version=version)
                update(s, f"{name} below {kind}", (name, -1, kind), version=version)
            update(s, f"{name} greatest", (name, 32767, UPGRADE), version=version)
    update(s, "metadata.version below", ("metadata.version", 6, UNSAFE_DOWNGRADE))
    update(s, "metadata.version none", ("metadata.version", 0, UNSAFE_DOWNGRADE))


@script("BASE-97")
def lower_levels(s: Session) -> None:
    levels = levels_of(s)
    for version in (0, 1, 2):
        for name in FEATURES:
            for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
                if version:
                    lower = levels[name].final - 1
                    update(s, f"{name} {kind}", (name, lower, kind), version=version)


@script("BASE-96", "BASE-98")
def unknown_features_and_types(s: Session) -> None:
    final = levels_of(s)["share.version"].final
    for version in (0, 1, 2):
        for name in ("no.such", "", "kraft.version"):
            for level in (0, 1):
                update(s, f"{name!r} {level}", (name, level, UPGRADE), version=version)
        update(s, "nothing", version=version)
    for kind in (0, 4, -1):
        update(s, f"type {kind}", ("share.version", final, kind))
        update(s, f"type {kind} for less", ("share.version", final - 1, kind))


@script("BASE-96", "BASE-98")
def several_features(s: Session) -> None:
    levels = levels_of(s)
    good = [(name, levels[name].final, UPGRADE) for name in FEATURES]
    bad = ("no.such", 1, UPGRADE)
    for version in (0, 1, 2):
        update(s, "all", *good, version=version)
        update(s, "all and a bad one", *good, bad, version=version)
        update(s, "a bad one first", bad, *good, version=version)
        update(s, "twice", good[0], good[0], version=version)
        update(s, "twice, with another level", good[0], ("share.version", 99, UPGRADE), version=version)
        update(s, "bad twice", bad, bad, version=version)
