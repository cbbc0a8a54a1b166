"""Generates docs/settings.md from the tables of settings: `python -m tests.checks.settings_doc` (or
`make docs`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kbroker.settings.altering import CONFIGS, Scope
from kbroker.settings.definition import INT_MAX, LONG_MAX, ConfigDef

SETTINGS_DOC = Path(__file__).parents[2] / "docs" / "settings.md"

HEAD = """# Settings

Made from the tables in `kbroker/settings/broker.py`, `settings/broker_share_groups.py`,
`settings/broker_groups.py`, `settings/broker_listeners.py`, `settings/broker_sasl.py`,
`settings/broker_oauth.py`, `settings/broker_cleaner.py`, `settings/broker_cluster.py`,
`settings/compression.py`, `settings/topic_configs.py`, `settings/group_configs.py` and
`settings/queue.py` by `make docs`; do not edit.

Names, defaults and bounds are Kafka's; kbroker's own settings begin with `kbroker.`. A setting works or
is refused: unknown names and values out of bounds stop the start of a broker, and are answered with
INVALID_CONFIG for topics and groups. Only topics have settings without effect, which say so.
"""

SECTIONS = {
    Scope.BROKER: """## Broker

Set with `kbroker start --config name=value` (may be repeated), in the environment variable
`KBROKER_START_CONFIG`, or in a file of `name=value` lines (`--config-file FILE`). The command line wins
over the environment, and the environment over the file ([more](cli.md#kbroker-start)).

The file may be [a server.properties of Kafka](cli.md#a-file-of-kafka). Each of Kafka's settings that is
not listed here is refused, with what to do instead. Settings with one allowed value describe what kbroker
does anyway.

Settings marked *dynamic* can be altered on the running broker, for this broker
(`kbroker configs set --broker 1 NAME=VALUE`, or any Kafka tool) or for all (`--broker ""`). The change
takes effect at once and survives restarts. As in Kafka, the first of these wins: altered for this
broker, altered for all, command line, environment, file, default. After
`kbroker configs delete --broker 1 NAME` the value from the start applies again.

The broker does not start, and an alteration is refused, unless these hold:

- The value of `group.share.X` lies between `group.share.min.X` and `group.share.max.X`, and the same
  for `group.consumer.X`.
- The session timeout is greater than the heartbeat interval.
- There may be at least as many share sessions as members of one group.

To move a bound past the default, alter both in one command. If a moved bound no longer allows the value
of a group, the value stays stored, and the nearest allowed one is in effect. If an altered setting
contradicts the command line or the file of a later start, only that setting is ignored, with a warning.
""",
    Scope.TOPIC: """## Topics

Set when a topic is created or altered. A default that names a broker setting is that setting's value,
also for existing topics. Settings with one allowed value describe what kbroker does anyway; they exist
for tools that read or repeat them. "No effect here": any of Kafka's values is taken, stored and
described, but kbroker does the same with each. Such a setting concerns only speed or the layout of files.
""",
    Scope.GROUP: """## Groups

Set on a group, which need not exist yet, as config resource type GROUP. A value must lie between the
broker's `group.share.min.X` and `group.share.max.X`, or `group.consumer.min.X` and
`group.consumer.max.X`. If these bounds are narrowed later, the nearest value within them is in effect.
All settings take effect at once; `share.auto.offset.reset` matters only for partitions that the group
has not used yet.
""",
}

ROW = "| `{name}` | {type} | {default} | {allowed} | {doc} |"
TABLE_HEAD = ["| setting | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]


def render() -> str:
    lines = [HEAD]
    for scope, text in SECTIONS.items():
        lines += [text, *TABLE_HEAD, *rows(CONFIGS[scope].values()), ""]
    return "\n".join(lines)


def rows(defs: Iterable[ConfigDef]) -> Iterable[str]:
    for each in defs:
        doc = each.documentation + (" *(dynamic)*" if each.dynamic else "")
        yield ROW.format(
            name=each.name, type=each.type.name.lower(), default=default(each), allowed=allowed(each), doc=doc
        )


def default(each: ConfigDef) -> str:
    if each.synonyms:
        return " or ".join(f"`{name}`" for name, _ in each.synonyms)
    if each.default is None:
        return "unset"
    return f"`{each.default}`" if each.default else "empty"


def allowed(each: ConfigDef) -> str:
    if each.only or each.choices:
        return ", ".join(f"`{value}`" if value else "empty" for value in each.only or each.choices)
    if each.minimum is None and each.maximum is None:
        return ""
    return f"{bound(each.minimum)}..{bound(each.maximum)}"


def bound(value: int | float | None) -> str:
    return "" if value is None or value in (INT_MAX, LONG_MAX) else str(value)


if __name__ == "__main__":
    SETTINGS_DOC.write_text(render())
