"""franz-go's own integration tests of a pinned release, unmodified: records through chains of
consumer groups, transactions and share groups, whose members come and go.

They come from the Go module proxy, and are skipped where Go or the module is not to be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.broker_process import RunningBroker
from kbroker.testing.broker import open_test_broker

VERSION = "v1.22.3"
MODULE = f"github.com/twmb/franz-go@{VERSION}"
RECORDS = 50_000
PATIENCE_S = 900
TESTS = (
    "TestGroupETL", "TestTxnEtl", "TestShareGroupETL", "TestShareGroup", "TestShareGroupAckOnClose",
    "TestShareGroupOffsetsAdmin", "TestIssue1034", "TestPing",
)  # fmt: skip

pytestmark = pytest.mark.full


def _go(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests of the package kgo, as a program."""
    if shutil.which("go") is None:
        pytest.skip("franz-go's tests need Go")
    home = tmp_path_factory.mktemp("franz-go")
    fetched = _go("mod", "download", "-json", MODULE, cwd=home)
    if fetched.returncode:
        pytest.skip(f"{MODULE} cannot be fetched: {fetched.stdout.strip()[-300:]}")
    source = home / "source"  # The module cache is read-only.
    shutil.copytree(json.loads(fetched.stdout)["Dir"], source, copy_function=shutil.copyfile)
    for directory in (source, *source.rglob("*/")):
        directory.chmod(0o755)
    built = _go("test", "-c", "-o", str(home / "kgo.test"), "./pkg/kgo", cwd=source)
    assert built.returncode == 0, built.stderr[-2000:]
    return home / "kgo.test"


@pytest.fixture(scope="module", params=["segment", "lmdb", "rocksdb"])
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(storage=request.param) as running:
        yield running


@pytest.mark.parametrize("name", TESTS)
def test_of_kgo(program: Path, broker: RunningBroker, name: str) -> None:
    environment = {
        **os.environ,
        "KGO_SEEDS": broker.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
    }
    done = subprocess.run(
        [program, "-test.v", "-test.run", f"^{name}$", "-test.timeout", f"{PATIENCE_S}s"],
        env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S + 60,
    )  # fmt: skip
    assert f"--- PASS: {name} " in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
