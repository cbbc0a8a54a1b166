"""Hosts of entries: addresses, ranges of addresses (CIDR), and texts that are refused. Every client
of a script comes from 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterable

from tests.differential.script import Value
from tests.differential.scripts.acl_decisions import topics
from tests.differential.scripts.acl_filters import delete, describe, wanted
from tests.differential.secured import (
    ALICE,
    ALLOW,
    ANY,
    BOB,
    DENY,
    LITERAL,
    MATCH,
    READ,
    TOPIC,
    WRITE,
    Secured,
    secured_script,
)

INVALID = "Invalid CIDR notation '"


def create(s: Secured, hosts: Iterable[str]) -> None:
    """An entry for each; their codes, and the beginning of each message."""
    rows = [s.entry(BOB, READ, TOPIC, f"{s.name}-t", host=host) for host in hosts]
    s.call("create_acls", 3, on=ALICE, creations=rows)
    for row in rows:
        (result,) = s.prepare("create_acls", 3, ALICE, creations=[row]).results
        begin = (result.error_message or "").partition(": ")[0]
        s.note(f"message for {row['host']!r}", begin)


def readable(s: Secured, *hosts: str, permission: int = ALLOW) -> None:
    """For each host whether an entry for it concerns the client, as one note."""
    found = []
    for host in hosts:
        topic = s.topic()
        if permission == DENY:
            s.allow(BOB, READ, TOPIC, topic.name)
            s.deny(BOB, READ, TOPIC, topic.name, host=host)
        else:
            s.allow(BOB, READ, TOPIC, topic.name, host=host)
        rows = [{"topic_id": None, "name": topic.name}]
        answer = s.prepare(
            "metadata", 12, BOB, topics=rows, allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )  # fmt: skip
        (row,) = answer.topics
        found.append([host, row.error_code.name, row.topic_authorized_operations])
    s.note("hosts", found)


@secured_script("ACL-1")
def ranges_that_are_accepted(s: Secured) -> None:
    create(s, ("10.0.0.0/8", "10.1.2.3/8", "0.0.0.0/0", "10.0.0.1/32", "255.255.255.255/0", "10.0.0.0/08"))
    create(s, ("2001:db8::/32", "::/0", "::1/128", "2001:DB8::1/64", "0:0:0:0:0:0:0:1/128", "::10.0.0.0/104"))


@secured_script("ACL-2")
def ranges_of_ipv4_that_are_refused(s: Secured) -> None:
    create(s, ("10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/8/8", "10.0.0.0/008"))
    create(s, ("10.0.0/8", "10/8", "256.0.0.0/8", "10.0.0.0.0/8", "10.0.0.0/255.0.0.0", "10.0.0.0/0.0.0.255"))
    create(
        s, (" 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0 /8", "10.0.0.0/ 8", "/", "/8", "*/8", "a/b", "host/24")
    )


@secured_script("ACL-2")
def ranges_of_ipv6_that_are_refused(s: Secured) -> None:
    create(s, ("::/129", "::/-1", "::/", "::/x", "::/64/64", ":/64", "1:2/64", "2001:db8::1::/64", "g::/16"))
    create(s, ("::/ffff::", " ::/0", "::/0 ", "::ffff:10.0.0.0/104", "::ffff:0:0/96", "host:name/24"))


@secured_script("ACL-2")
def odd_spellings_of_ranges(s: Secured) -> None:
    create(s, ("010.0.0.0/8", "[::1]/128", "::/+64"))


@secured_script("ACL-2", "ACL-3")
def texts_that_are_no_ranges(s: Secured) -> None:
    create(s, ("", " ", "localhost", "10.0.0.1", "10.0.0.256", "10.0.0", "::1", "0.0.0.0", "**", "10.*"))


@secured_script("ACL-1")
def ranges_that_allow(s: Secured) -> None:
    readable(
        s, "127.0.0.0/8", "127.9.9.9/8", "0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "126.0.0.0/7", "10.0.0.0/8"
    )
    readable(
        s, "127.0.0.0/31", "127.0.0.1/31", "127.0.0.2/31", "127.0.0.1/32", "127.0.0.0/32", "127.0.0.0/30"
    )


@secured_script("ACL-1")
def ranges_that_deny(s: Secured) -> None:
    readable(s, "127.0.0.0/8", "127.0.0.1/32", "127.0.0.0/31", "0.0.0.0/0", "10.0.0.0/8", permission=DENY)


@secured_script("ACL-1", "ACL-4")
def ranges_of_the_other_family(s: Secured) -> None:
    readable(s, "::/0", "::1/128", "::7f00:0/104", "2001:db8::/32")
    readable(s, "::/0", "::1/128", permission=DENY)


@secured_script("ACL-3")
def addresses_that_allow(s: Secured) -> None:
    readable(s, "127.0.0.1", "127.0.0.2", "127.1", "localhost", " 127.0.0.1", "::1")


@secured_script("ACL-1")
def a_range_and_an_address_inside(s: Secured) -> None:
    """DENY wins, whichever of the two is narrower."""
    both, other = s.topic(), s.topic()
    s.allow(BOB, READ, TOPIC, both.name, host="127.0.0.1")
    s.deny(BOB, READ, TOPIC, both.name, host="127.0.0.0/8")
    s.allow(BOB, READ, TOPIC, other.name, host="127.0.0.0/8")
    s.deny(BOB, READ, TOPIC, other.name, host="127.0.0.1")
    topics(s, both, other)


@secured_script("ACL-5")
def ranges_that_are_withdrawn(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, READ, TOPIC, topic.name)
    s.deny(BOB, READ, TOPIC, topic.name, host="127.0.0.0/8")
    topics(s, topic)
    delete(s, wanted(topic.name, host="127.0.0.1"), wanted(topic.name, host="127.0.0.1/8"))
    topics(s, topic)
    denial = wanted(topic.name, host="127.0.0.0/8")
    delete(s, denial)
    s.until(lambda: s.entries(denial) == 0, "it is gone")
    topics(s, topic)


@secured_script("ACL-5")
def filters_with_hosts(s: Secured) -> None:
    """They compare the text, also where one range contains another."""
    name = f"{s.name}-topic"
    for host in ("10.0.0.0/8", "10.1.2.3/8", "10.1.2.3", "2001:db8::/32"):
        s.allow(BOB, READ, TOPIC, name, host=host)
    hosts = (
        "10.1.2.3",
        "10.0.0.0/8",
        "10.1.2.3/8",
        "10.0.0.0/9",
        "10.0.0.0",
        "2001:DB8::/32",
        "a/b",
        "/",
        "",
    )
    for pattern in (LITERAL, MATCH):
        for host in hosts:
            describe(s, name, pattern, host=host)
    delete(s, *(wanted(name, host=host) for host in hosts))
    s.until(lambda: s.entries(wanted(name)) == 1, "the others are gone")
    describe(s, name, ANY)


def _unless_loading(code: str) -> str:
    return "" if code == "coordinator_load_in_progress" else code


@secured_script("ACL-1")
def some_topic_that_may_be_written(s: Secured) -> None:
    """InitProducerId without a transactional id."""

    def ask() -> None:
        values: dict[str, Value] = {"transactional_id": None, "transaction_timeout": 60_000}
        s.note(
            "a producer id",
            s.until(
                lambda: _unless_loading(s.prepare("init_producer_id", 4, BOB, **values).error_code.name),
                "the broker has producer ids",
            ),
        )

    ask()
    s.allow(BOB, WRITE, TOPIC, f"{s.name}-other", host="10.0.0.0/8")
    ask()
    s.allow(BOB, WRITE, TOPIC, f"{s.name}-t", host="127.0.0.0/8")
    ask()
    s.deny(BOB, WRITE, TOPIC, f"{s.name}-t", host="127.0.0.1/32")
    ask()
