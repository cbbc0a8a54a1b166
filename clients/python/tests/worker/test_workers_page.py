"""docs/workers.md: each example is saved under the name in its first line, and runs unchanged under
both loops. The broker's address comes from the environment."""

from __future__ import annotations

import importlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from clients.python.tests.worker.queues import QUICK
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client.worker import Job
from tests.cli.snippets import run_lines

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "workers.md").read_text()
EXAMPLES: Mapping[str, str] = {
    name: text for text, name in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", PAGE, re.DOTALL)
}
ADDRESS = "127.0.0.1:9092"
_TRIED: set[str] = set()


class Page:
    """A folder with the examples, and a broker of their own."""

    def __init__(self, folder: Path, broker: RunningBroker) -> None:
        self.folder, self.broker = folder, broker
        for name, text in EXAMPLES.items():
            (folder / f"{name}.py").write_text(text.replace(ADDRESS, broker.bootstrap))

    def load(self, name: str) -> Any:
        _TRIED.add(name)
        return importlib.import_module(name)

    def queue(self, name: str, **config: str) -> None:
        self.broker.create_queue(name, {**QUICK, **config})

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(map(str, (self.folder, ROOT, ROOT / "clients" / "python" / "src")))
        return {**os.environ, "PYTHONPATH": path, "KBROKER_BOOTSTRAP": self.broker.bootstrap}

    async def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, *command], cwd=self.folder, env=self.environment(), capture_output=True,
                text=True, timeout=60,
            )  # fmt: skip

        return await anyio.to_thread.run_sync(run)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Modules of an earlier test are forgotten."""
    with open_test_broker(storage="memory", durability="os") as broker:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        for name in EXAMPLES:
            monkeypatch.delitem(sys.modules, name, raising=False)
        yield Page(tmp_path, broker)
        for name in EXAMPLES:
            sys.modules.pop(name, None)


async def outcomes(worker: Any) -> list[tuple[str, Any]]:
    """Outcomes and payloads, in order."""
    import json

    return [(each.outcome, json.loads(each.job.value)) for each in await worker.drain()]


async def test_the_first_example(page: Page, capsys: pytest.CaptureFixture[str], anyio_backend: str) -> None:
    run_lines(["kbroker queues create emails --prefetch 8"], page.broker.bootstrap)
    sent = await page.run("send.py")
    assert (sent.returncode, sent.stderr) == (0, "")
    _TRIED.add("send")
    emails = page.load("emails")
    async with emails.app.testing(page.broker.bootstrap) as worker:
        (done,) = await worker.drain(leave=1)
        await emails.send_email.send({"to": "nowhere"})
        (rejected,) = await worker.drain(leave=1)
    assert (done.outcome, rejected.outcome) == ("succeeded", "rejected")
    assert "sent to ann@example.com" in capsys.readouterr().out
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "kbroker_client.worker", "run", "emails:app", "--loop", anyio_backend],
        cwd=page.folder, env=page.environment(), stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        line = await anyio.to_thread.run_sync(process.stderr.readline)
        assert "worker ready, queues: emails" in line
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0


async def test_typed(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.queue("orders")
    typed = page.load("typed")
    async with typed.app.testing(page.broker.bootstrap) as worker:
        await typed.ship.send(typed.Order(7, Decimal("9.90")))
        assert await outcomes(worker) == [("succeeded", {"number": 7, "amount": "9.90", "note": None})]
    assert "shipping 7 9.90" in capsys.readouterr().out


async def test_retries(page: Page) -> None:
    page.queue("invoices")
    retries = page.load("retries")
    expected = {
        200: ["succeeded"], 400: ["rejected"], 404: ["rejected"], 503: ["retried"] * 4 + ["rejected"],
    }  # fmt: skip
    async with retries.app.testing(page.broker.bootstrap) as worker:
        for status, wanted in expected.items():
            await retries.invoice.send({"status": status, "customer": 1})
            assert [outcome for outcome, _ in await outcomes(worker)] == wanted
        await retries.invoice.send({"status": 429})
        with anyio.fail_after(10):
            while not (first := await worker.drain(leave=1)):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert [each.outcome for each in first] == ["succeeded"]  # And its copy waits.
        with pytest.raises(retries.Retry, match="the service is busy, attempt 2"):
            await retries.invoice({"status": 503}, Job("invoices", attempt=2))
        retries.ask_the_service = _all_well
        assert await outcomes(worker) == [("succeeded", {"status": 429})]


async def _all_well(payload: object) -> int:
    return 200


async def test_long_jobs(page: Page, capfd: pytest.CaptureFixture[str]) -> None:
    page.queue("videos")
    page.queue("uploads")
    long_jobs = page.load("long_jobs")
    async with long_jobs.app.testing(page.broker.bootstrap) as worker:
        await long_jobs.convert.send({"frames": 10})
        await long_jobs.upload.send({"file": "a.mp4"})
        assert sorted(outcome for outcome, _ in await outcomes(worker)) == ["succeeded", "succeeded"]
    printed = capfd.readouterr()
    assert "frames: 45" in printed.err
    assert "uploading a.mp4" in printed.out


async def test_order_by_key(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    run_lines(["kbroker queues create accounts --ordering key --prefetch 8"], page.broker.bootstrap)
    by_key = page.load("by_key")
    async with by_key.app.testing(page.broker.bootstrap) as worker:
        await by_key.send_some()
        await worker.drain()
    steps = [f"customer-7 {step}" for step in ("open", "pay", "close")]
    assert [line for line in capsys.readouterr().out.splitlines() if "customer" in line] == steps


async def test_periodic_jobs(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.queue("reports")
    (line,) = [each for each in PAGE.splitlines() if each.startswith("    kbroker queues send reports")]
    run_lines([line], page.broker.bootstrap)
    reports = page.load("reports")
    async with reports.app.testing(page.broker.bootstrap) as worker:
        await worker.drain()
    assert "report of 2026-11-28" in capsys.readouterr().out


async def test_fan_out(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("signups", "signups-audit", "newsletter"):
        page.queue(name)
    fan_out = page.load("fan_out")
    async with fan_out.app.testing(page.broker.bootstrap) as worker:
        await fan_out.newsletter.send({"names": ["ann", "bob"]})
        await worker.drain()
    printed = capsys.readouterr().out.splitlines()
    expected = ["audited ann", "audited bob", "welcome ann", "welcome bob"]
    assert sorted(line for line in printed if line.startswith(("audited", "welcome"))) == expected


async def test_exactly_once_effects(page: Page) -> None:
    page.queue("payments")
    payments = page.load("payments")
    async with payments.app.testing(page.broker.bootstrap) as worker:
        for _ in range(3):
            await payments.book.send(payments.Payment("order-17", "ann", 500))
        await payments.book.send(payments.Payment("order-18", "ann", 100))
        await worker.drain()
    database = sqlite3.connect(page.folder / "books.db")
    assert sorted(database.execute("SELECT * FROM bookings")) == [("ann", 100), ("ann", 500)]
    database.close()


async def test_embedded(page: Page) -> None:
    page.queue("emails")
    ran = await page.run("embedded.py")
    _TRIED.add("embedded")
    assert (ran.returncode, ran.stderr) == (0, "")


async def test_watched(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    from prometheus_client import REGISTRY

    before = set(REGISTRY._collector_to_names)
    page.queue("watched")
    watched = page.load("watched")
    try:
        async with watched.app.testing(page.broker.bootstrap) as worker:
            await watched.task.send(1)
            await worker.drain()
    finally:
        for collector in set(REGISTRY._collector_to_names) - before:
            REGISTRY.unregister(collector)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == ["begin watched-0-0", "rejected: watched-0-0 OSError down"]


async def test_the_test(page: Page, anyio_backend: str) -> None:
    _TRIED.add("test_emails")
    ran = await page.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", anyio_backend, "--rootdir", str(page.folder),
        "test_emails.py",
    )  # fmt: skip
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


async def test_the_test_without_a_loop(page: Page) -> None:
    _TRIED.add("test_without_a_loop")
    ran = await page.run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(page.folder),
        "test_without_a_loop.py",
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_every_example_is_tried(request: pytest.FixtureRequest) -> None:
    """Last in this file, and only if all its tests run."""
    names = {item.name.partition("[")[0] for item in request.session.items if item.path == Path(__file__)}
    if len(names) == len([name for name in globals() if name.startswith("test_")]):
        assert EXAMPLES.keys() == _TRIED
