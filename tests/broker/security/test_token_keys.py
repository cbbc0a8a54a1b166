"""How many tokens wait at a time, for their check and for the key set, and that addresses share the
places."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.broker.security import token_keys
from kbroker.broker.security.token_keys import TokenKeys
from kbroker.security.oauth_tokens import TokenRefused, TokenRules
from kbroker.security.sasl_settings import TokenSettings
from tests.security.tokens import AUDIENCE, ISSUER, claims, key_set, public, rsa, signed

PATIENCE_S = 60


def test_a_bounded_number_of_tokens_wait(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(public(rsa("a"))))
    rules = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
    text = signed(rsa("a"), claims(time.time()))
    most = token_keys._CHECKS_AT_A_TIME + token_keys._WAITING

    async def run() -> None:
        keys = TokenKeys(TokenSettings(url=file.as_uri(), rules=rules), "x")
        owners = [object() for _ in range(token_keys._CHECKS_AT_A_TIME)]
        names: list[str] = []

        async def ask() -> None:
            names.append((await keys.bearer_of(text, "10.0.0.1")).name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.keep_current)
            await ask()
            for owner in owners:
                await keys._threads.acquire_on_behalf_of(owner)
            async with trio.open_nursery() as asking:
                for _ in range(most):
                    asking.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(TokenRefused, match="too many tokens wait"):
                    await keys.bearer_of(text, "10.0.0.1")
                assert len(names) == 1
                for owner in owners:
                    keys._threads.release_on_behalf_of(owner)
            assert names == ["alice"] * (1 + most)
            nursery.cancel_scope.cancel()

    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await run()

    trio.run(bounded)


async def test_a_flood_from_one_address_keeps_no_other_token_out(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither where tokens wait for a thread nor where they wait for the key set."""
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(public(rsa("a"))))
    rules = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
    text = signed(rsa("a"), claims(time.time()))
    most = token_keys._CHECKS_AT_A_TIME + token_keys._WAITING
    outcomes: Counter[tuple[str, bool]] = Counter()

    async def ask(keys: TokenKeys, host: str) -> None:
        try:
            await keys.bearer_of(text, host)
        except TokenRefused:
            outcomes[host, False] += 1
        else:
            outcomes[host, True] += 1

    keys = TokenKeys(TokenSettings(url=file.as_uri(), rules=rules), "x")
    owners = [object() for _ in range(token_keys._CHECKS_AT_A_TIME)]
    for owner in owners:
        await keys._threads.acquire_on_behalf_of(owner)
    async with trio.open_nursery() as nursery:
        # The key set is not read yet, so all wait for it first.
        for host in ("10.0.0.1",) * (most + 9) + ("10.0.0.2",):
            nursery.start_soon(ask, keys, host)
            await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as reading:
            reading.start_soon(keys.keep_current)
            assert keys._reading is not None
            await keys._reading.wait()
            await trio.testing.wait_all_tasks_blocked()
            reading.cancel_scope.cancel()
        assert outcomes["10.0.0.2", False] == 0
        # Now they wait for a thread.
        for host in ("10.0.0.1",) * (most + 9) + ("10.0.0.2",):
            nursery.start_soon(ask, keys, host)
            await trio.testing.wait_all_tasks_blocked()
        assert outcomes["10.0.0.2", False] == 0
        for owner in owners:
            keys._threads.release_on_behalf_of(owner)
    assert outcomes["10.0.0.2", True] == 2
    assert outcomes["10.0.0.1", False] > 0
