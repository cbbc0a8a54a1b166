"""kafka-acls, and users and quotas of kafka-configs, at both brokers."""

from __future__ import annotations

import pytest

from tests.kafka_tools.java import ACLS, CONFIGS, MISSING
from tests.kafka_tools.side_by_side.pair import Pair

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


def test_acls(pair: Pair) -> None:
    with pair.chapter("acls") as same:
        bob = "--allow-principal User:bob"
        same("list nothing", ACLS, "--list")
        same("add for a consumer", ACLS, f"--add {bob} --consumer --topic t --group g")
        same(
            "add for a producer",
            ACLS,
            f"--add {bob} --producer --topic p- --resource-pattern-type prefixed --transactional-id x",
        )
        same(
            "add a denial",
            ACLS,
            "--add --deny-principal User:eve --deny-host 10.0.0.0/8 --operation All --topic '*'",
        )
        same("add a bad range", ACLS, f"--add {bob} --allow-host 10.0.0.0/33 --topic t")
        same("add for the cluster", ACLS, f"--add {bob} --operation Alter --cluster")
        same("add for a user", ACLS, f"--add {bob} --operation CreateTokens --user-principal User:a")
        same("add what does not fit", ACLS, f"--add {bob} --operation IdempotentWrite --topic t")
        same("add a bad principal", ACLS, "--add --allow-principal bob --topic t")
        same("list", ACLS, "--list")
        same("list a topic", ACLS, "--list --topic t")
        same("list what matches a topic", ACLS, "--list --topic p-1 --resource-pattern-type match")
        same("list of one", ACLS, "--list --principal User:eve --topic t --resource-pattern-type any")
        same("remove one", ACLS, f"--remove --force {bob} --operation Read --topic t")
        same("remove by a pattern", ACLS, "--remove --force --topic p-1 --resource-pattern-type match")
        same("remove a missing one", ACLS, "--remove --force --topic missing")
        same("list after", ACLS, "--list")
        for rest in ("--group g", "--transactional-id x", "--cluster", "--user-principal User:a"):
            same(f"remove {rest}", ACLS, f"--remove --force {rest} --resource-pattern-type any")
        same("remove the topic", ACLS, "--remove --force --topic t")
        same("list at the end", ACLS, "--list")


def test_users(pair: Pair) -> None:
    with pair.chapter("users") as same:
        user = "--entity-type users --entity-name bob"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            password = f"{mechanism}=[iterations=4096,password=kept]"
            same(f"add {mechanism}", CONFIGS, f"--alter --add-config {password} {user}")
        same(
            "add too few rounds",
            CONFIGS,
            f"--alter --add-config SCRAM-SHA-256=[iterations=1,password=x] {user}",
        )
        same("describe", CONFIGS, f"--describe {user}")
        same("describe every one", CONFIGS, "--describe --entity-type users")
        same("delete", CONFIGS, f"--alter --delete-config SCRAM-SHA-512 {user}")
        same("delete again", CONFIGS, f"--alter --delete-config SCRAM-SHA-512 {user}")
        same("describe after", CONFIGS, f"--describe {user}")
        same("delete the other", CONFIGS, f"--alter --delete-config SCRAM-SHA-256 {user}")
        same("describe a missing one", CONFIGS, f"--describe {user}")


@pytest.mark.parametrize(
    ("chosen", "limits"),
    [
        ("--user alice", "producer_byte_rate=1024,request_percentage=12.5"),
        ("--user-defaults", "consumer_byte_rate=2048"),
        ("--client app", "consumer_byte_rate=2048"),
        ("--user alice --client-defaults", "producer_byte_rate=1024"),
        ("--ip 10.0.0.1", "connection_creation_rate=5"),
        ("--ip-defaults", "connection_creation_rate=5"),
    ],
)
def test_quotas(pair: Pair, chosen: str, limits: str) -> None:
    with pair.chapter(f"quotas {chosen}") as same:
        same("alter", CONFIGS, f"--alter {chosen} --add-config {limits}")
        same("alter none", CONFIGS, f"--alter {chosen} --add-config no.such=1")
        same("alter to nothing", CONFIGS, f"--alter {chosen} --add-config {limits.split('=')[0]}=-1")
        same("describe", CONFIGS, f"--describe {chosen}")
        names = ",".join(each.split("=")[0] for each in limits.split(","))
        same("delete", CONFIGS, f"--alter {chosen} --delete-config {names}")
        same("delete again", CONFIGS, f"--alter {chosen} --delete-config {names}")
        same("describe after", CONFIGS, f"--describe {chosen}")
