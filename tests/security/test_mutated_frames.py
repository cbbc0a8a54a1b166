"""Changed frames, in process: the frame reader and the decoder, the states of a log-in, and the
APIs of ACLs, passwords and quotas. Together their long forms are a million frames.
"""

from __future__ import annotations

import inspect
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from kbroker.api import APIS, handler_of
from kbroker.api.request import CloseConnection, Request
from kbroker.protocol.frames import BadFrame, FrameReader
from kbroker.protocol.messages import (
    build,
    encode,
    encode_response,
    read_request,
    read_request_head,
    request_schema,
)
from kbroker.security.acls import Acl, AclFilter, Operation, ResourceType
from kbroker.security.exchange import Derivation
from kbroker.security.quotas import EntityFilter
from kbroker.security.sasl import (
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    MECHANISMS,
    Admission,
    Authenticated,
    Continue,
    Sasl,
    SaslStage,
)
from kbroker.security.scram import salt_password
from tests.api.authorization_world import AUTHORIZER, FIELDS, MISSING, OPEN, opened
from tests.api.conftest import KEYS, Client, Connect, connect
from tests.security.test_mutations import mutated
from tests.security.test_sasl import METADATA, connection

__all__ = ["connect"]
LIMIT_BYTES = 1 << 20


def frame(api: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """With its size."""
    key = KEYS[api]
    schema = request_schema(key, version)
    tags = b"\0" if schema.__header_schema__.__version__ >= 2 else b""
    body = encode(build(schema, {"timeout": 1000, **fields}))
    content = struct.pack(">hhih", key, version, 7, 1) + b"x" + tags + body
    return struct.pack(">i", len(content)) + content


def frames_of(*names: str) -> list[bytes]:
    """A request of each version, and of each kind that the tests of rights have."""
    found = []
    for name in names:
        api = APIS[KEYS[name]]
        requests = FIELDS[name](MISSING) if name in FIELDS else [OPEN[name]]
        found += [
            frame(name, version, each) for version in range(api.first, api.last + 1) for each in requests
        ]
    return found


# -- the frame reader and the decoder
# --------------------------------------------------------------------------------------------------


def pieces(chance: random.Random, data: bytes) -> Iterator[memoryview]:
    """`data` as the network may deliver it."""
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 3, 4, 5, 17, len(data)))
        yield memoryview(data)[at : at + size]
        at += size


def cut(reader: FrameReader, parts: Iterator[memoryview]) -> tuple[list[bytes], bool]:
    """The frames, and whether the connection would be closed then."""
    found: list[bytes] = []
    try:
        for part in parts:
            found.extend(bytes(each) for each in reader.feed(part))
    except BadFrame:
        return found, True
    return found, False


@pytest.mark.parametrize("count", [10_000, pytest.param(500_000, marks=pytest.mark.full)])
def test_frames_are_cut_alike_and_decoded_or_refused(count: int) -> None:
    """However the bytes arrive. A request that cannot be decoded is a ValueError, which closes its
    connection, and nothing else."""
    chance = random.Random(count)
    known = frames_of(*FIELDS, *OPEN)
    read = refused = 0
    while read + refused < count:
        stream = b"".join(chance.choice(known) for _ in range(4))
        stream = mutated(chance, stream)
        whole, is_bad = cut(FrameReader(LIMIT_BYTES), iter([memoryview(stream)]))
        assert cut(FrameReader(LIMIT_BYTES), pieces(chance, stream)) == (whole, is_bad)
        for each in whole:
            try:
                head = read_request_head(each)
                api = APIS.get(head.api_key)
                if api is not None and api.first <= head.api_version <= api.last:
                    read_request(head, each)
                read += 1
            except ValueError:
                refused += 1
        refused += is_bad
    assert read > count / 10
    assert refused > count / 10


# -- the states of a log-in
# --------------------------------------------------------------------------------------------------

_TOKENS = (
    b"\0alice\0wrong",
    b"\0bob\0secret of alice",
    b"alice\0bob\0secret of bob",
    b"n,,n=alice,r=abcdef",
    b"c=biws,r=abcdefserver,p=" + b"A" * 43 + b"=",
    b"n,,\x01auth=Bearer x.y.z\x01\x01",
    b"",
)


def step_at_random(chance: random.Random, sasl: Sasl) -> bool:
    """One request of an attacker. Returns False when the connection is closed."""
    fitting = AUTHENTICATE_KEY if sasl.stage is SaslStage.TOKENS else HANDSHAKE_KEY
    key = (
        fitting if chance.random() < 0.97 else chance.choice((HANDSHAKE_KEY, AUTHENTICATE_KEY, METADATA, -1))
    )
    if not sasl.takes_raw_tokens and sasl.admit(key, 0) is not Admission.SERVE:
        return False
    if key == HANDSHAKE_KEY and not sasl.takes_raw_tokens:
        mechanism = chance.choice(MECHANISMS if chance.random() < 0.97 else ("OAUTHBEARER", "plain", ""))
        return sasl.handshake(chance.randrange(2), mechanism).error_code == 0
    token = chance.choice(_TOKENS)
    step = sasl.authenticate(token if chance.random() < 0.3 else mutated(chance, token), 0)
    if isinstance(step, Derivation):
        # The slow part is left out, nearly always.
        is_derived = chance.random() < 0.01
        salted = salt_password(step.password, step.salt, step.iterations, step.digest) if is_derived else b""
        step = sasl.derived(salted, 0)
    assert not isinstance(step, Authenticated), token
    return isinstance(step, Continue)


@pytest.mark.parametrize("count", [20_000, pytest.param(400_000, marks=pytest.mark.full)])
def test_nobody_logs_in_by_a_changed_message(count: int) -> None:
    chance = random.Random(count)
    steps = 0
    while steps < count:
        sasl = connection()
        while step_at_random(chance, sasl):
            steps += 1
            assert sasl.stage is not SaslStage.READY
            assert sasl.principal is None
        steps += 1
        assert sasl.stage in (SaslStage.FAILED, SaslStage.TOKENS, SaslStage.HANDSHAKE)
        assert sasl.principal is None


# -- ACLs and passwords
# --------------------------------------------------------------------------------------------------

_ADMINISTRATION = (
    "create_acls", "delete_acls", "describe_acls", "alter_user_scram_credentials",
    "describe_user_scram_credentials", "alter_client_quotas", "describe_client_quotas",
)  # fmt: skip


async def answered(client: Client, sent: bytes) -> bytes | None:
    """What the server does with a frame; None: the connection would be closed."""
    content = memoryview(sent)[4:]
    try:
        head = read_request_head(content)
        if head.api_key not in [KEYS[each] for each in _ADMINISTRATION]:
            return None
        api = APIS[head.api_key]
        if not api.first <= head.api_version <= api.last:
            return None
        body = read_request(head, content)
        request = Request(client.broker, client.connection, *head[:2], head.client_id, body)
        answer: Any = handler_of(head.api_key)(request)
        if inspect.iscoroutine(answer):
            answer = await answer
    except (ValueError, CloseConnection):
        return None
    return encode_response(head.api_key, head.api_version, answer)


State: TypeAlias = tuple[Sequence[Acl], Sequence[tuple[str, Any]], Sequence[Any]]


def state(client: Client) -> State:
    """Of all ACLs, passwords and quotas."""
    security = client.broker.security
    acls = sorted(client.broker.acls._table.candidates(AclFilter()))
    users = [(name, dict(security.credentials.described(name))) for name in security.credentials.names()]
    quotas = filter(None, client.broker.quotas.selected(EntityFilter((), strict=False)))
    return acls, users, sorted(quotas, key=repr)


@pytest.mark.parametrize("count", [1_500, pytest.param(60_000, marks=pytest.mark.full)])
async def test_changed_requests_of_a_user_without_rights_change_nothing(count: int, connect: Connect) -> None:
    chance = random.Random(count)
    known = frames_of(*_ADMINISTRATION)
    async with opened(connect) as world:
        await world.allow("alice", Operation.READ, ResourceType.TOPIC, "orders")
        bob = world.client_of("bob")
        before = state(world.client)
        served = 0
        for _ in range(count):
            served += await answered(bob, mutated(chance, chance.choice(known))) is not None
        assert state(world.client) == before
        assert served > count / 10


@pytest.mark.parametrize("count", [1_500, pytest.param(60_000, marks=pytest.mark.full)])
async def test_changed_requests_of_an_administrator_are_stored_whole(count: int, connect: Connect) -> None:
    """Each has its answer or closes its connection; after a restart everything is as it was."""
    chance = random.Random(count)
    known = frames_of(*_ADMINISTRATION)
    async with connect(engine="lmdb", config=AUTHORIZER, durability="os") as client:
        served = 0
        for _ in range(count):
            served += await answered(client, mutated(chance, chance.choice(known))) is not None
        assert served > count / 10
        before = state(client)
        assert before[0]
    async with connect(engine="lmdb", config=AUTHORIZER, durability="os") as client:
        assert state(client) == before
