"""How the worker library logs in where kbroker's own client does: its class of security is another,
and in a distribution that need not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.client.security import ClientSecurity
    from kbroker_client import Security


def client_security(given: ClientSecurity) -> Security | None:
    """`given` for the client of the worker library. None: neither TLS nor a log-in."""
    import anyio

    from kbroker.client import tls
    from kbroker.client.oauth import fetch_token
    from kbroker_client import Security

    if given.tls is None and given.login is None:
        return None
    context = tls.context_of(given.tls) if given.tls is not None else False
    if given.login is None:
        return Security(tls=context)
    source = given.login.tokens
    if source is None:
        return Security(context, given.login.mechanism, given.login.username, given.login.password)

    async def token() -> str:
        return await anyio.to_thread.run_sync(fetch_token, source)

    return Security(context, given.login.mechanism, token=token)
