"""Hosts of ACL entries: addresses, and ranges of them, beside Python's own networks."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.security.acls import Acl, AclTable, Operation
from kbroker.settings import hosts
from kbroker.settings.hosts import is_address, is_within, parse_range
from tests.security.acl_strategies import entry


def is_for(host: str, client: str) -> bool:
    return entry("User:bob", Operation.READ, "t", host=host).is_for("User:bob", client)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("127.0.0.0/8", ["127.0.0.0", "127.0.0.1", "127.255.255.255"], ["126.255.255.255", "128.0.0.0"]),
        ("10.1.2.3/8", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0"]),
        ("10.0.0.4/30", ["10.0.0.4", "10.0.0.7"], ["10.0.0.3", "10.0.0.8"]),
        ("10.0.0.5/31", ["10.0.0.4", "10.0.0.5"], ["10.0.0.3", "10.0.0.6"]),
        ("10.0.0.5/32", ["10.0.0.5"], ["10.0.0.4", "10.0.0.6"]),
        ("10.0.0.0/08", ["10.9.9.9"], ["11.0.0.0"]),
        ("255.255.255.255/0", ["0.0.0.0", "1.2.3.4", "255.255.255.255"], ["::", "::1", "fe80::1%eth0"]),
        ("::/0", ["::", "::1", "fe80::1%eth0", "ffff::"], ["0.0.0.0", "127.0.0.1"]),
        ("2001:DB8::1/32", ["2001:db8::", "2001:db8:ffff::1"], ["2001:db9::", "32.1.13.184"]),
        ("fe80::/10", ["fe80::1%eth0", "febf::1"], ["fec0::"]),
        ("::1/128", ["::1"], ["::", "::2", "0.0.0.1"]),
        ("::10.0.0.0/104", ["::a00:1"], ["10.0.0.1"]),
    ],
)
def test_a_range_has_the_addresses_of_its_family(text: str, inside: list[str], outside: list[str]) -> None:
    """ACL-1, ACL-4: network and broadcast address included."""
    assert [each for each in inside if not is_for(text, each)] == []
    assert [each for each in outside if is_for(text, each)] == []


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "*/0"])
def test_no_range_has_a_client_without_an_address(text: str) -> None:
    """ACL-1: a plugin's tests, or a socket that is no internet socket."""
    for host in ("", "localhost", "unix", "10.0.0.0/8"):
        assert not is_for(text, host)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/8/8", "10.0.0.0/008",
        "10.0.0/8", "10/8", "256.0.0.0/8", "10.0.0.0.0/8", "10.0.0.0/255.0.0.0", "10.0.0.0/0.0.0.255",
        " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/8\n", "10.0.0.0/ 8", "/", "/8", "*/8", "a/b", "host/24",
        "\u0661\u0660.0.0.0/8", "10.0.0.0/\u0668", "::/129", "::/", "::/x", "::/64/64", ":/64", "1:2/64",
        "g::/16", "::/ffff::", " ::/0", "::ffff:10.0.0.0/104", "::ffff:0:0/96", "::ffff:10.0.0.0/0",
        "host:name/24", "fe80::1%eth0/64", "010.0.0.0/8", "[::1]/128", "::/+64", "0" * 100 + "::/0",
        "10.0.0.0/8" + " " * 100,
    ],
)  # fmt: skip
def test_what_is_no_range_is_refused_and_matches_no_client(text: str) -> None:
    """ACL-2: the entry may be stored by an earlier version."""
    with pytest.raises(ValueError, match=r"^Invalid CIDR notation '"):
        entry("User:bob", Operation.READ, "t", host=text).check_host()
    for client in ("10.0.0.0", "10.0.0.1", "::1", "::", "8.0.0.0", text):
        assert not is_for(text, client)


@pytest.mark.parametrize("text", ["*", " ", "localhost", "10.0.0.256", "10.*", "**", "::1", "010.0.0.1"])
def test_a_text_without_a_slash_is_taken_as_it_is(text: str) -> None:
    """ACL-3: no text is a range, so each is accepted."""
    entry("User:bob", Operation.READ, "t", host=text).check_host()


def test_a_host_is_not_empty() -> None:
    """ACL-2"""
    with pytest.raises(ValueError, match="Host pattern cannot be null or empty"):
        entry("User:bob", Operation.READ, "t", host="").check_host()


@pytest.mark.parametrize("text", ["10.0.0.1", "::ffff:10.0.0.1", "::FFFF:a00:1"])
def test_an_address_is_for_its_client_in_every_spelling(text: str) -> None:
    """ACL-3, ACL-4"""
    assert is_for(text, "10.0.0.1")
    assert not is_for(text, "10.0.0.2")
    assert is_address(text)


_ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@settings(deadline=None)
@given(_ADDRESSES, st.integers(0, 128), st.data())
def test_a_range_is_the_network_of_python(
    address: IPv4Address | IPv6Address, bits: int, data: st.DataObject
) -> None:
    """ACL-1: with clients near its ends, and of the other family."""
    bits = min(bits, address.max_prefixlen)
    text = f"{address}/{bits}"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        assert parse_range(text) is None
        return
    network = ip_network(text, strict=False)
    most = (1 << address.max_prefixlen) - 1
    ends = int(network.network_address), int(network.broadcast_address)
    near = [type(address)(min(max(end + step, 0), most)) for end in ends for step in (-1, 0, 1)]
    client = data.draw(st.one_of(st.sampled_from(near), _ADDRESSES))
    canonical = hosts.canonical_host(str(client))
    range_ = parse_range(text)
    assert range_ is not None
    assert is_within(str(client), range_) is (ip_address(canonical) in network)


def test_a_range_is_parsed_once_and_other_hosts_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACL-1: when the table gets the entry, and not for a check."""
    parsed: list[str] = []
    parse = hosts.parse_range

    def counting(text: str) -> hosts.AddressRange | None:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr("kbroker.security.acls.parse_range", counting)

    def made(host: str) -> Acl:
        return entry("User:bob", Operation.READ, "t", host=host)

    table = AclTable(made(host) for host in ("10.0.0.0/8", "a/b", "10.0.0.1", "*", "localhost"))
    table.add(made("10.0.0.0/8"))
    assert parsed == ["10.0.0.0/8", "a/b"]
    for _ in range(3):
        assert [acl.is_for("User:bob", "10.0.0.1") for acl in table] == [True, False, True, True, False]
    assert parsed == ["10.0.0.0/8", "a/b"]


def test_entries_without_a_range_carry_nothing_else() -> None:
    """Their number may be large."""
    table = AclTable(entry("User:bob", Operation.READ, "t", host=host) for host in ("*", "10.0.0.1", "x"))
    for acl in table:
        acl.is_for("User:bob", "10.0.0.1")
        assert acl.__dict__ == {}
