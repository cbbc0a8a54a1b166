"""The settings of a group (config resource type GROUP): `GroupConfig` with one group's values;
settings/group_configs.py has the table.

A group's own value share.X must lie between the broker's bounds group.share.min.X and
group.share.max.X when it is set. If the bounds are narrowed later, the nearest value within them is
in effect. Without an own value the broker's group.share.X applies. The same holds for consumer.X.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from kbroker.settings.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.settings.broker_groups import GROUP_CONSUMER_TRIPLES
from kbroker.settings.broker_share_groups import GROUP_SHARE_TRIPLES
from kbroker.settings.definition import LONG_MAX
from kbroker.settings.group_configs import DEAD_LETTER_TOPIC, GROUP_CONFIGS, RESET
from kbroker.settings.queue import contradictions as queue_contradictions

_BY_DURATION = "by_duration:"
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?(?:(?P<seconds>[-+]?[0-9]+)(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
_UNIT_NS: Final = {"days": 86_400 * 10**9, "hours": 3600 * 10**9, "minutes": 60 * 10**9, "seconds": 10**9}

_BOUNDS: Final = {
    f"{kind}.{triple}": (f"group.{kind}.min.{triple}", f"group.{kind}.max.{triple}")
    for kind, triples in (("consumer", GROUP_CONSUMER_TRIPLES), ("share", GROUP_SHARE_TRIPLES))
    for triple in triples
}


class GroupConfig:
    """The effective settings of one group: `config["share.record.lock.duration.ms"]`, typed as the
    table says.

    The broker's values and bounds are read with each access, so that they may change.
    """

    def __init__(self, stored: Mapping[str, str], broker: BrokerConfig) -> None:
        """`stored`: the values set for the group, as altering returned them; names that are no
        longer in the table are ignored."""
        self._own: dict[str, Any] = {
            name: GROUP_CONFIGS[name].parse(text) for name, text in stored.items() if name in GROUP_CONFIGS
        }
        self._broker = broker

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the table knows the type, and callers annotate what they take
        if name not in self._own:
            each = GROUP_CONFIGS[name]
            return self._broker.first_set(each.synonyms) if each.synonyms else each.default_value()
        value = self._own[name]
        if name in _BOUNDS:
            least, most = _BOUNDS[name]
            return max(self._broker[least], min(self._broker[most], value))
        return value

    def timeouts_too_short(self, altered: Collection[str] | None = None) -> Iterator[str]:
        """A line for each kind of group whose session timeout is not longer than its heartbeat
        interval; with `altered`, only if one of the two settings is in it."""
        for kind in ("consumer", "share"):
            timeout, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if altered is not None and timeout not in altered and heartbeat not in altered:
                continue
            if self[timeout] <= self[heartbeat]:
                they = f"{timeout} ({self[timeout]}) must be greater than {heartbeat} ({self[heartbeat]})"
                yield f"{they}; raise the one or lower the other"

    def clamped(self) -> dict[str, int]:
        """Own settings that the broker's bounds no longer allow, with the values in effect instead:
        worth a warning."""
        return {name: self[name] for name in self._own if name in _BOUNDS and self[name] != self._own[name]}


def check_group_values(stored: Mapping[str, str], broker: BrokerConfig, altered: Collection[str]) -> None:
    """Check settings against the broker's bounds and against each other. Raises ValueError.

    Only settings in `altered` are checked, and pairs with one of them. The bounds may have been
    narrowed since the others were set: those are clamped, and must not prevent the alteration.
    """
    if stored.get(RESET, "latest") not in ("latest", "earliest"):
        reset_duration_ms(stored[RESET])
    if stored.get(DEAD_LETTER_TOPIC, "").startswith("__"):
        raise ValueError(
            f"Invalid value {stored[DEAD_LETTER_TOPIC]} for configuration {DEAD_LETTER_TOPIC}: it must "
            "not begin with __"
        )
    for contradiction in _contradictions(stored, broker, altered):
        raise ValueError(contradiction)


def _contradictions(
    stored: Mapping[str, str], broker: BrokerConfig, altered: Collection[str]
) -> Iterator[str]:
    for name, (least, most) in _BOUNDS.items():
        if name in stored and name in altered:
            value = int(stored[name])
            if value < broker[least]:
                bound = f"{name} must be greater than or equal to {least}, which is {broker[least]}"
                yield f"{bound}; {_how_to_move(least, 'lower', value, broker)}"
            if value > broker[most]:
                bound = f"{name} must be less than or equal to {most}, which is {broker[most]}"
                yield f"{bound}; {_how_to_move(most, 'raise', value, broker)}"
    yield from GroupConfig(stored, broker).timeouts_too_short(altered)
    yield from queue_contradictions(stored)


def _how_to_move(bound: str, verb: str, value: int, broker: BrokerConfig) -> str:
    """The command that an operator runs to have `value` within the broker's bound."""
    each = BROKER_CONFIGS[bound]
    try:
        each.parse(str(value))
    except ValueError:
        limit = each.minimum if verb == "lower" else each.maximum
        return f"that cannot be {'lowered below' if verb == 'lower' else 'raised above'} {limit}"
    if each.dynamic:
        return f"to {verb} that first: kbroker configs set --broker {broker['node.id']} {bound}={value}"
    return f"to {verb} that, start the broker with --config {bound}={value}"


def reset_duration_ms(policy: str) -> int:
    """How far before now the policy `by_duration:PnDTnHnMn.nS` begins; raises ValueError for any
    other text."""
    duration_ms = (
        _parse_duration_ms(policy.removeprefix(_BY_DURATION)) if policy.startswith(_BY_DURATION) else None
    )
    if duration_ms is None or duration_ms < 0:
        raise ValueError(
            f"Invalid value {policy} for configuration {RESET}: it must be latest, earliest or "
            "by_duration:<PnDTnHnMn.nS>, not negative"
        )
    return duration_ms


def _parse_duration_ms(text: str) -> int | None:
    """ISO 8601 days and time, as far as Java's Duration goes (no years, months or weeks); None for
    anything else."""
    match = _DURATION.fullmatch(text) if len(text) <= 64 else None
    if (
        match is None
        or (match["days"] is None and (match["time"] or "T").upper() == "T")
        or (match["time"] or "").upper() == "T"
    ):
        return None
    total_ns = sum(int(match[unit] or 0) * scale for unit, scale in _UNIT_NS.items())
    fraction_ns = int((match["fraction"] or "").ljust(9, "0"))
    total_ns += -fraction_ns if (match["seconds"] or "").startswith("-") else fraction_ns
    duration_ms = (-total_ns if match["sign"] == "-" else total_ns) // 1_000_000
    return duration_ms if duration_ms <= LONG_MAX else None
