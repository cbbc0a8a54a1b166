"""ssl.principal.mapping.rules: how the subject of a client certificate becomes a user name.

    RULE:^CN=([^,]*),OU=workers,.*$/$1/L,DEFAULT

Rules are tried in order. A rule's pattern must match the whole subject (a distinguished name in the
form of RFC 4514, such as CN=alice,O=Acme,C=DE). $1 stands for what the first group matched. L or U
behind the last slash makes the name lower or upper case. DEFAULT takes the whole subject. A slash
inside a pattern or a replacement is written with a backslash before it. Patterns run in linear time
(RE2).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_DEFAULT = "DEFAULT"
_GROUP = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    """`pattern` None: DEFAULT."""

    pattern: Any
    replacement: str
    case: str


class PrincipalMapper:
    def __init__(self, rules: str) -> None:
        """Raises ValueError, which names the rule."""
        self._rules = list(_parsed(rules))

    def name_of(self, subject: str) -> str | None:
        """The user name of a certificate's subject; None if no rule matches."""
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return subject
            match = pattern.fullmatch(subject)
            if match is not None:
                name = _GROUP.sub(partial(_group, match.groups()), replacement)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        return None


def _group(groups: tuple[str | None, ...], found: re.Match[str]) -> str:
    number = int(found[1])
    return (groups[number - 1] or "") if 1 <= number <= len(groups) else f"${number}"


def _parsed(rules: str) -> list[_Rule]:
    found, at, rules = [], 0, rules.strip()
    while at < len(rules):
        rest = rules[at:]
        if rest.startswith(_DEFAULT):
            found.append(_Rule(None, "", ""))
            at += len(_DEFAULT)
        elif (match := _RULE.match(rest)) is not None:
            found.append(_Rule(_compiled(match[1]), match[2].replace("\\/", "/"), match[3]))
            at += match.end()
        else:
            raise ValueError(f"expected DEFAULT or RULE:PATTERN/REPLACEMENT/, found {rest!r}")
        separator = re.match(r"\s*,\s*|\s*$", rules[at:])
        if separator is None:
            raise ValueError(f"expected a comma between two rules, found {rules[at:]!r}")
        at += separator.end()
    if not found:
        raise ValueError("expected at least one rule, such as DEFAULT")
    return found


def _compiled(pattern: str) -> Any:  # noqa: ANN401 - google-re2 has no types
    import re2  # Imported here, as most brokers have no rules.

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern.replace("\\/", "/"), options)
    except re2.error as error:
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from None
