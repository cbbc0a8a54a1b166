"""Principals as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.principals import ANONYMOUS, Principal, parse_principal, user


@given(st.text().filter(lambda kind: ":" not in kind), st.text())
def test_a_principal_survives_its_text(kind: str, name: str) -> None:
    assert parse_principal(str(Principal(kind, name))) == (kind, name)


def test_clients_are_users() -> None:
    assert str(user("a:b")) == "User:a:b"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_without_a_colon_it_is_none() -> None:
    with pytest.raises(ValueError, match=r"^Could not parse principal from `bob` \(no colon"):
        parse_principal("bob")
