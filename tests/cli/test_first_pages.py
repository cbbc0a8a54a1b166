"""The first pages that a newcomer reads: their snippets run unchanged, and librdkafka logs what
they say it logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.client.broker_process import free_port
from kbroker.testing.broker import open_test_broker
from tests.brokers import require_engine
from tests.cli.consumer_groups import until
from tests.cli.snippets import run_lines

ROOT = Path(__file__).parents[2]
PAGES = {"docs/consumer-groups.md": 1}
"""How many client snippets each page has."""
PREVIEW = 'The share consumer is in "Preview"'


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_as_they_stand(page: str) -> None:
    text = (ROOT / page).read_text()
    snippets = [
        code
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if code.startswith("from confluent_kafka import")
    ]
    assert len(snippets) == PAGES[page]
    with open_test_broker(
        storage=require_engine("segment"), config={"group.initial.rebalance.delay.ms": "0"}
    ) as broker:
        broker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
        produce = [sys.executable, "-m", "kbroker", "produce", "orders", "-b", broker.bootstrap]
        broker.create_topic("orders")
        subprocess.run(produce, input="1\n2\n", text=True, check=True, capture_output=True, timeout=60)
        for code in snippets:
            assert "127.0.0.1:9092" in code
            ran = run_python(code.replace("127.0.0.1:9092", broker.bootstrap))
            assert re.findall(r"b'(\d)'", ran.stdout) == ["1", "2"]


@pytest.mark.parametrize("page", ["PACKAGE.md", "docs/queues.md"])
def test_first_lines_pasted_as_one_block(page: str, tmp_path: Path) -> None:
    """They wait for the broker that they start. A command that a person ends is left out."""
    text = (ROOT / page).read_text()
    (block,) = re.findall(r"(?:^    .*\n)*^    kbroker start .*\n(?:^    .*\n)*", text, re.MULTILINE)
    lines = [line[4:] for line in block.splitlines()]
    lines = lines[next(at for at, line in enumerate(lines) if line.startswith("kbroker start")) :]
    address = f"127.0.0.1:{free_port()}"
    start = lines[0].replace("kbroker start", f"kbroker start --listen {address}").replace("9644", "0")
    folder = f"cd {tmp_path}; set -m; trap 'kill -- -$!; wait $! || true' EXIT"
    run_lines([folder, start, *lines[1:]], address)
    assert "kbroker ready on" in (tmp_path / "ready").read_text()


def test_the_readme_pasted_as_one_block(tmp_path: Path) -> None:
    """Its broker, queue, worker and view run as they stand, after the installation; only ports
    differ. The view is shown once, and the page's dead letter shows the reason."""
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    install, folder, rest = block.split("\n", 2)
    assert install.endswith("pip install . ./clients/python")
    assert folder.startswith("cd ")
    (show,) = re.findall(r"`(kbroker dead-letters list .*?)`", text)
    address, admin = f"127.0.0.1:{free_port()}", str(free_port())
    rest = rest.replace("kbroker start", f"kbroker start --listen {address}").replace("9644", admin)
    lines = [
        f"cd {tmp_path}; set -m",
        "trap 'for job in $(jobs -p); do kill -- -$job; done; wait || true' EXIT",
        rest.replace("127.0.0.1:9092", address).replace(" --watch", ""),
        f"until {show} | grep 'nobody wants job 13'; do sleep 0.2; done",
    ]
    try:
        shown = run_lines(lines, address)
    finally:
        end_detached(address)
    assert "queue jobs\n" in shown
    assert "nobody wants job 13" in shown


def test_watch_a_worker_die(tmp_path: Path) -> None:
    """The page's slow worker, run twice, processes its queue; when one is killed, its job goes to
    the other."""
    page = (ROOT / "docs" / "queues.md").read_text()
    text = page.partition("## Watch a worker die\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert '"reconnect.backoff.ms": 1000' in code
    lines = ["kbroker queues create jobs"]
    lines += re.findall(r"^    (.*kbroker queues send .*)$", text, re.MULTILINE)
    workers = dict(re.findall(r"^    python slow.py (\w+) > (\S+) 2>&1 &$", text, re.MULTILINE))
    assert len(workers) == 2
    with open_test_broker(storage=require_engine("segment")) as broker:
        run_lines(lines, broker.bootstrap)
        assert "127.0.0.1:9092" in code
        (tmp_path / "slow.py").write_text(code.replace("127.0.0.1:9092", broker.bootstrap))
        running = {name: start_worker(tmp_path, name, log) for name, log in workers.items()}
        try:
            (dies, process), (lives, _) = running.items()
            until("it begins a job", lambda: begun(tmp_path / workers[dies], "1"))
            process.kill()
            process.wait()
            first = begun(tmp_path / workers[dies], "1")
            found = until("its job is redelivered", lambda: begun(tmp_path / workers[lives], "2"))
            assert found == first
            assert '"bert begins job ... delivery 2"' in text
            assert PREVIEW in (tmp_path / workers[lives]).read_text()
        finally:
            for each in running.values():
                each.kill()
                each.wait()


def test_a_worker_in_ten_lines(tmp_path: Path) -> None:
    """The tasks of PACKAGE.md run, and its dead letter shows the reason."""
    text = (ROOT / "PACKAGE.md").read_text()
    (code,) = re.findall(r"```python\n(# tasks.py\n.*?)```", text, re.DOTALL)
    send, work, show = re.findall(
        r"^    (.*kbroker (?:queues send|worker|dead-letters) .*)$", text, re.MULTILINE
    )
    assert "127.0.0.1:9092" in code
    with open_test_broker(storage=require_engine("segment")) as broker:
        run_lines(["kbroker queues create jobs", send], broker.bootstrap)
        (tmp_path / "tasks.py").write_text(code.replace("127.0.0.1:9092", broker.bootstrap))
        arguments = work.partition("#")[0].split()[1:]
        worker = subprocess.Popen([sys.executable, "-m", "kbroker", *arguments], cwd=tmp_path)
        try:
            until(
                "job 13 is given up",
                lambda: "nobody wants job 13" in run_lines([show], broker.bootstrap) or None,
            )
        finally:
            worker.terminate()
            assert worker.wait(30) == 0


def end_detached(address: str) -> None:
    """The broker that `kbroker start --detach --listen ADDRESS` has left in the background."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            arguments = Path("/proc", process, "cmdline").read_text().split("\0")
            if {"--detach", address} <= set(arguments):
                os.kill(int(process), signal.SIGKILL)


def start_worker(folder: Path, name: str, log: str) -> subprocess.Popen[bytes]:
    with (folder / log).open("w") as file:
        return subprocess.Popen(
            [sys.executable, str(folder / "slow.py"), name], stdout=file, stderr=subprocess.STDOUT
        )


def begun(log: Path, delivery: str) -> str | None:
    """The last job that a worker has begun with this delivery count."""
    return next(
        iter(reversed(re.findall(rf"begins job (\d+) delivery {delivery}$", log.read_text(), re.MULTILINE))),
        None,
    )


def test_the_preview_line_is_hidden_as_the_pages_say() -> None:
    code = """
from confluent_kafka import ShareConsumer
ShareConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "workers", "log_level": LEVEL}).close()
"""
    assert PREVIEW in run_python(code.replace("LEVEL", "4")).stderr
    assert PREVIEW not in run_python(code.replace("LEVEL", "3")).stderr
    assert "`log_level=3` hides" in (ROOT / "docs" / "clients.md").read_text()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran
