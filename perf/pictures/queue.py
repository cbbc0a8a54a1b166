"""A queue in a terminal: runs the dying worker of docs/queues.md and draws the output.

    python -m perf.pictures.queue docs/pictures/queue.svg

Commands and worker are those of docs/queues.md. Its broker runs in a temporary directory, so
only the ports differ from what a reader would type; the picture shows the page's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from kbroker.testing.broker import RunningBroker, open_test_broker

_ROOT = Path(__file__).parents[2]
_COLUMNS = 84
_PATIENCE_S = 60
_PROMPT = "[bold green]$[/] "


@click.command()
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def main(picture: Path) -> None:
    page = (_ROOT / "docs" / "queues.md").read_text().partition("## Watch a worker die\n")[2]
    page = page.partition("\n## ")[0]
    with (
        TemporaryDirectory() as home,
        open_test_broker(storage="segment", extra_args=["--admin", "0"]) as broker,
    ):
        shown, told = _carry_out(page, broker, Path(home))
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(_drawn(shown, told))


def _carry_out(page: str, broker: RunningBroker, home: Path) -> tuple[str, list[str]]:
    """The output of `describe` before a worker was killed, and the other worker's log after
    that."""
    admin = broker.ready_line.rpartition("admin http://")[2].rstrip(")")
    for line in (
        "kbroker queues create jobs",
        *re.findall(r"^    (.*kbroker queues send .*)$", page, re.MULTILINE),
    ):
        _shell(line, broker)
    (worker,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = home / "slow.py"
    program.write_text(worker.replace("127.0.0.1:9092", broker.bootstrap))
    logs = {name: home / f"{name}.log" for name in re.findall(r"python slow.py (\w+)", page)}
    workers = [_start(program, name, log) for name, log in logs.items()]
    dies, lives = logs.values()
    try:
        _until(lambda: all(_begun(log, 1) for log in logs.values()))
        time.sleep(5)
        shown = _shell(
            f"kbroker queues describe jobs --admin {admin} --watch & sleep 6; kill -INT $!; wait", broker
        )
        workers[0].kill()
        job = _begun(dies, 1)[-1]
        _until(lambda: job in _begun(lives, 2))
    finally:
        for each in workers:
            each.kill()
            each.wait()
    lines = [line for line in lives.read_text().splitlines() if "begins job" in line]
    moments = shown.split("queue jobs\n")[1:]
    busy = [each for each in moments if re.search(r"[1-9.]+ finished/s", each)]
    return (busy or moments)[-1], lines[-5:]


def _start(program: Path, name: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, str(program), name], stdout=file, stderr=subprocess.STDOUT)


def _shell(line: str, broker: RunningBroker) -> str:
    setup = f'set -m; kbroker() {{ exec "{sys.executable}" -m kbroker "$@"; }}; '
    env = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap, "COLUMNS": str(_COLUMNS)}
    ran = subprocess.run(["bash", "-c", setup + line], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


def _begun(log: Path, delivery: int) -> list[str]:
    """The jobs that a worker has begun at this delivery count."""
    return re.findall(rf"begins job (\d+) delivery {delivery}$", log.read_text(), re.MULTILINE)


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing to draw within {_PATIENCE_S} s")
        time.sleep(0.1)


def _drawn(shown: str, told: list[str]) -> str:
    """An SVG with the reader's fonts, since an image in a page cannot load any."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115
    console.print(_PROMPT + "kbroker queues describe jobs --admin 9644 --watch")
    console.print("queue jobs", style="bold")
    console.print(shown.strip("\n"), markup=False)
    console.print()
    console.print(_PROMPT + "kill -9 %2          [dim]# anna, in the middle of a job[/]")
    console.print(_PROMPT + "tail -f bert.log")
    for line in told:
        console.print(line, style="bold yellow" if line.endswith("delivery 2") else "", markup=False)
    svg = console.export_svg(title="kbroker", theme=MONOKAI, unique_id="queue")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")


if __name__ == "__main__":
    main()
