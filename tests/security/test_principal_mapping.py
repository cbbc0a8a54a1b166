"""ssl.principal.mapping.rules: the first rule that matches the whole subject decides."""

from __future__ import annotations

import pytest

from kbroker.security.principal_mapping import PrincipalMapper

SUBJECT = "CN=Alice,OU=Workers,O=Acme,C=DE"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", SUBJECT),
        ("RULE:^CN=([^,]*),.*$/$1/", "Alice"),
        ("RULE:^CN=([^,]*),.*$/$1/L", "alice"),
        ("RULE:CN=([^,]*),OU=([^,]*),.*/$1@$2/U", "ALICE@WORKERS"),
        ("RULE:CN=Bob.*/bob/, DEFAULT", SUBJECT),
        ("RULE:CN=Alice/alice/,RULE:CN=(.*?),.*/$1/L", "alice"),
        ("RULE:CN=(.*?),.*/$1$2$9/", "Alice$2$9"),
        ("RULE:CN=(A\\/)?.*/x\\/$1/", "x/"),
        ("RULE:CN=Bob.*/bob/", None),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, name: str | None) -> None:
    assert PrincipalMapper(rules).name_of(SUBJECT) == name


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ("", "at least one rule"),
        ("alice", "expected DEFAULT or RULE"),
        ("RULE:CN=.*", "expected DEFAULT or RULE"),
        ("DEFAULT DEFAULT", "expected a comma between two rules"),
        ("RULE:CN=(.*/$1/", "is no regular expression"),
    ],
)
def test_a_mistake_is_named(rules: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        PrincipalMapper(rules)


def test_a_pattern_runs_in_linear_time() -> None:
    """Python's own engine would need years for this subject."""
    assert PrincipalMapper("RULE:(x+x+)+y/$1/").name_of("x" * 5000) is None
