"""Changed messages of clients: whatever byte differs, nobody logs in without the password."""

from __future__ import annotations

import base64
import random

import pytest

from kbroker.formats.security_values import ScramMechanism
from kbroker.security.exchange import AuthenticationFailed, Derivation, Found
from kbroker.security.plain import PlainServer
from kbroker.security.scram import ScramClient, ScramServer, new_credential

CREDENTIAL = new_credential("pencil", b"salt", 4096, ScramMechanism.SHA_256)
ODD = [b"", b"\0", b",", b"=", b"=2C", b"=3D", b",p=", b"\xff", b"n,,", b"r=", b"," * 1000, b"A" * 100_000]


def find(name: str) -> Found:
    return Found(ScramMechanism.SHA_256, CREDENTIAL, is_known=name == "user")


def mutated(chance: random.Random, message: bytes) -> bytes:
    """One to three changes: a bit, a cut, a piece that is moved, repeated or put in."""
    changed = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.randint(0, 8))
        match chance.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = chance.choice(ODD)
            case 3:
                changed[at:at] = changed[at:end]
            case 4:
                piece = changed[at:end]
                del changed[at:end]
                changed += piece
    return bytes(changed)


def final_of(nonce: str) -> tuple[ScramServer, bytes]:
    server = ScramServer("sha256", find, nonce, "refused")
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "client")
    first = server.respond(client.first())
    # The same password, salt and iterations each time: the slow part is done once.
    return server, client.final(first.token)


def meaning(final: bytes) -> tuple[bytes, bytes]:
    """base64 can write one proof in several ways."""
    signed, _, proof = final.rpartition(b",p=")
    try:
        return signed, base64.b64decode(proof, validate=True)
    except ValueError:
        return signed, proof


@pytest.mark.parametrize("rounds", [500, pytest.param(20_000, marks=pytest.mark.full)])
def test_mutated_scram_messages(rounds: int) -> None:
    chance = random.Random(rounds)
    first = b"n,,n=user,r=client"
    for number in range(rounds):
        server = ScramServer("sha256", find, f"server{number}", "refused")
        try:
            server.respond(mutated(chance, first))
            server.respond(mutated(chance, b"c=biws,r=clientserver,p=" + b"A" * 43 + b"="))
        except AuthenticationFailed:
            continue
        raise AssertionError("logged in without a password")


@pytest.mark.parametrize("rounds", [100, pytest.param(2_000, marks=pytest.mark.full)])
def test_a_right_proof_in_a_mutated_message(rounds: int) -> None:
    chance = random.Random(rounds)
    for number in range(rounds):
        server, final = final_of(f"server{number}")
        changed = mutated(chance, final)
        if meaning(changed) == meaning(final):
            continue
        with pytest.raises(AuthenticationFailed):
            server.respond(changed)


@pytest.mark.parametrize("rounds", [5_000, pytest.param(200_000, marks=pytest.mark.full)])
def test_mutated_plain_messages(rounds: int) -> None:
    chance = random.Random(rounds)
    for _ in range(rounds):
        message = mutated(chance, b"\0user\0pencil")
        try:
            wanted = PlainServer(find).respond(message)
        except AuthenticationFailed:
            continue
        assert isinstance(wanted, Derivation)
        assert message.count(b"\0") == 2
        assert wanted.password
        assert wanted.password == message.split(b"\0")[2]
