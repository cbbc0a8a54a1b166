"""Log-ins with tokens, whose issuer is away for a while."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from clients.python.tests.targets import Target
from kbroker.testing.broker import free_port, open_test_broker
from kbroker_client import BrokerUnreachable, Producer, Security, ShareConsumer
from tests.client.certificates import make_certificates
from tests.security.tokens import token_settings
from tests.server.issuer import open_issuer

pytestmark = pytest.mark.anyio


async def test_a_token_that_cannot_be_fetched_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client tries again, as it does without a broker: it logs in every other second here."""
    files, failures, is_away = make_certificates(tmp_path), 0, True
    plain, sasl = free_port(), free_port()
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    with open_issuer(files.server) as issuer:
        issuer.lifetime_s = 2
        config = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
            **token_settings(issuer.url("keys")),
        }

        async def fetch() -> str:
            nonlocal failures
            if is_away:
                failures += 1
                raise ConnectionRefusedError("the issuer is away")
            return issuer.token()

        security = Security(mechanism="OAUTHBEARER", token=fetch)
        with open_test_broker(config=config, port=plain, storage="memory") as broker:
            target = Target(plain, broker)
            topic, group, address = target.topic(), target.group(), f"127.0.0.1:{sasl}"
            with pytest.raises(BrokerUnreachable, match="ConnectionRefusedError: the issuer is away"):
                await Producer(address, security=security).__aenter__()
            is_away = False
            async with ShareConsumer(address, group=group, topics=[topic], security=security) as consumer:
                assert await consumer.poll(0.5) == []
                is_away, failures = True, 0
                with anyio.fail_after(20):
                    while failures < 3:
                        assert await consumer.poll(0.1) == []
                is_away = False
                async with Producer(target.bootstrap) as producer:
                    await producer.send(topic, b"0")
                assert len(await consumer.poll(20.0)) == 1
