"""Settings of type BROKER_LOGGER: the levels of loggers, described and altered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.script import Session, Value, script

LOGGER = 8
SET, DELETE, APPEND, SUBTRACT = range(4)
ROOT = "root"
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")


def described(s: Session, name: str = "1", keys: Sequence[str] | None = None, *, on: str = "a") -> Any:
    wanted = {"resource_type": LOGGER, "resource_name": name, "configuration_keys": keys}
    answer = s.prepare("describe_configs", 4, on=on, resources=[wanted], include_synonyms=True,
                       include_documentation=True)  # fmt: skip
    (row,) = answer.results
    return row


def level_of(s: Session, name: str) -> str | None:
    rows = [row.value for row in described(s).configs if row.name == name]
    return rows[0] if rows else None


def some_logger(s: Session, at: int = 0) -> str:
    """One that the broker has."""
    names = sorted(row.name for row in described(s).configs if row.name != ROOT)
    return str(names[at])


def altered(
    s: Session, what: str, *rows: tuple[str, int, str | None], broker: str = "1", version: int = 1,
    validate_only: bool = False, on: str = "a",
) -> None:  # fmt: skip
    """The code as a note: names of loggers are not the same in two brokers."""
    configs: list[Value] = [
        {"name": name, "config_operation": operation, "value": value} for name, operation, value in rows
    ]
    resource = {"resource_type": LOGGER, "resource_name": broker, "configs": configs}
    answer = s.prepare("incremental_alter_configs", version, on=on, resources=[resource],
                       validate_only=validate_only)  # fmt: skip
    (row,) = answer.responses
    s.note(what, [row.error_code.name, row.error_message and "text"])


@script("CFG-60", alone=True)
def loggers_described(s: Session) -> None:
    row = described(s)
    s.note("root", sum(each.name == ROOT for each in row.configs))
    s.note("sorts", sorted({
        (each.config_source, each.config_type, each.is_sensitive, each.read_only, each.documentation)
        for each in row.configs
    }, key=repr))  # fmt: skip
    s.note("levels", {each.value for each in row.configs} <= set(LEVELS))
    root = next(each for each in row.configs if each.name == ROOT)
    s.note("synonyms", [len(root.synonyms), [each.source for each in root.synonyms]])
    for keys in ([ROOT], ["no.such"], [ROOT, ROOT, "no.such"], []):
        row = described(s, keys=keys)
        found = sorted(each.name for each in row.configs)
        s.note(f"keys {keys}", [row.error_code.name, found if keys else len(found) > 1])


@script("CFG-60")
def loggers_of_other_brokers(s: Session) -> None:
    for name in ("", "2", "x", "-1", " 1", "1.0"):
        row = described(s, name)
        s.note(f"described {name!r}", [row.error_code.name, row.error_message and "text", len(row.configs)])
        altered(s, f"altered {name!r}", (ROOT, SET, "INFO"), broker=name, validate_only=True)


@script("CFG-61", alone=True)
def levels_altered(s: Session) -> None:
    name = some_logger(s)
    before = level_of(s, ROOT)
    for version in (0, 1):
        for level in LEVELS:
            altered(s, f"{level} in version {version}", (name, SET, level), version=version)
            s.note("level", level_of(s, name))
    altered(s, "only validated", (name, SET, "DEBUG"), validate_only=True)
    s.note("level", level_of(s, name))
    altered(s, "deleted", (name, DELETE, None))
    s.note("that of root", level_of(s, name) == before)
    altered(s, "deleted again", (name, DELETE, "INFO"))
    altered(s, "root", (ROOT, SET, "WARN"))
    s.note("level", [level_of(s, ROOT), level_of(s, name)])
    altered(s, "root as it was", (ROOT, SET, before))


@script("CFG-62", "CFG-63", alone=True)
def alterations_that_are_refused(s: Session) -> None:
    name, other = some_logger(s, -1), some_logger(s, -2)
    for level in ("info", "Info", "LOUD", "", None, "WARNING", "CRITICAL", "ALL", "INFO ", "20"):
        altered(s, f"level {level!r}", (name, SET, level), validate_only=True)
    for operation in (APPEND, SUBTRACT, 9, -1):
        altered(s, f"operation {operation}", (name, operation, "INFO"))
    for unknown in ("no.such", "", "a b"):
        altered(s, f"logger {unknown!r}", (unknown, SET, "INFO"), validate_only=True)
        altered(s, f"logger {unknown!r} deleted", (unknown, DELETE, None), validate_only=True)
    altered(s, "root deleted", (ROOT, DELETE, None))
    altered(s, "twice", (name, SET, "INFO"), (name, SET, "WARN"))
    altered(s, "one", (name, SET, "ERROR"))
    altered(s, "one of two", (name, SET, "FATAL"), (other, SET, "LOUD"))
    s.note("level", level_of(s, name))
    altered(s, "deleted", (name, DELETE, None))
    altered(s, "nothing")


@script("CFG-64", alone=True)
def loggers_in_old_alterations(s: Session) -> None:
    for version in (0, 2):
        for configs in ([], [{"name": ROOT, "value": "INFO"}]):
            resource = {"resource_type": LOGGER, "resource_name": "1", "configs": configs}
            s.call("alter_configs", version, resources=[resource], validate_only=True)


@script("CFG-65")
def loggers_listed(s: Session) -> None:
    s.call("list_config_resources", 1, resource_types=[LOGGER])


@script("CFG-62", alone=True)
def loggers_named_twice(s: Session) -> None:
    resource = {"resource_type": LOGGER, "resource_name": "1", "configs": [
        {"name": ROOT, "config_operation": SET, "value": "INFO"}]}  # fmt: skip
    s.call("incremental_alter_configs", 1, resources=[resource, resource], validate_only=True)
