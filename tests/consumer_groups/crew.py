"""The members of one consumer group, each in a separate process: they join, leave cleanly, are
killed and frozen.

The crew records events from outside a member (Gone, Back); each member records the others itself
(turns.py). `Crew.stir` picks one of these disturbances at random; some members of a group always
stay unharmed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.consumer_groups.turns import GROUP_GONE, Orders
from tests.differential.apache_kafka import class_path
from tests.judges.history_events import Back, Event, Gone, merge, read_lines, to_json

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
Command = Callable[[Orders], list[str]]


def python_member(module: str) -> Command:
    return lambda orders: [sys.executable, "-m", f"tests.consumer_groups.{module}", *orders.arguments()]


def java_member(orders: Orders) -> list[str]:
    command = ["java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp", f"{java_classes()}:{class_path()}"]
    return [*command, "ConsumerMember", *orders.arguments()]


@cache
def java_classes() -> Path:
    """The directory of the compiled Java member."""
    source = Path(__file__).parent / "ConsumerMember.java"
    target = ROOT / "build" / "consumer-member"
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["javac", "-d", str(target), "-cp", class_path(), str(source)],
        check=True,
        capture_output=True,
        text=True,
    )
    return target


COMMANDS: dict[str, Command] = {
    "range": python_member("confluent_member"),
    "cooperative": python_member("confluent_member"),
    "consumer": python_member("confluent_member"),
    "kafka-python": python_member("kafka_python_member"),
    "aiokafka": python_member("aiokafka_member"),
    "java-range": java_member,
    "java-cooperative": java_member,
    "java-consumer": java_member,
}
"""How a member of each kind is started."""
FREEZE_THEMSELVES = {"range", "cooperative", "consumer", "kafka-python", "aiokafka"}


class MemberFailed(AssertionError):
    """A member ended by itself, or did not end on request."""


class MemberProcess:
    def __init__(self, orders: Orders, write: Callable[[Event], None]) -> None:
        self.orders, self._write = orders, write
        self._errors = orders.history.with_suffix(".err")
        self._was_killed = False
        self.frozen_until: float | None = None
        """When to thaw it, on the monotonic clock; None: it is not frozen."""
        with self._errors.open("ab") as log:
            command = COMMANDS[orders.kind](orders)
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def name(self) -> str:
        return self.orders.name

    def check_alive(self) -> None:
        if self._process.poll() is not None and not self.has_lost_its_group:
            raise MemberFailed(
                f"member {self.name} ended early with {self._process.returncode}:\n{self._log()}"
            )

    @property
    def has_lost_its_group(self) -> bool:
        return self._process.poll() == GROUP_GONE

    def leave(self) -> None:
        """Let the member leave cleanly. `wait`: wait for it, if it has started."""
        if not self._is_ready():
            self.kill()
            return
        self._process.send_signal(signal.SIGTERM)

    def _is_ready(self) -> bool:
        """Whether it handles signals."""
        return self.orders.history.exists()

    def wait(self) -> None:
        if self._was_killed:
            return
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise MemberFailed(f"member {self.name} does not end:\n{self._log()}") from error
        if code not in (0, GROUP_GONE):
            raise MemberFailed(f"member {self.name} ended with {code}:\n{self._log()}")

    def kill(self) -> None:
        self._write(Gone(time.monotonic_ns(), self.name))
        self._was_killed = True
        self.dispose()

    def freeze(self, seconds: float, *, before_commit: bool) -> None:
        """Freeze the member at once, or between its work and its next commit, for which it waits a
        little."""
        self.frozen_until = time.monotonic() + seconds
        if before_commit and self.orders.kind in FREEZE_THEMSELVES and self._is_ready():
            self._process.send_signal(signal.SIGUSR1)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                if self._is_stopped():
                    return
                time.sleep(0.01)
        self._write(Gone(time.monotonic_ns(), self.name))
        self._process.send_signal(signal.SIGSTOP)

    def _is_stopped(self) -> bool:
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def thaw(self) -> None:
        self.frozen_until = None
        self._write(Back(time.monotonic_ns(), self.name))
        self._process.send_signal(signal.SIGCONT)

    def dispose(self) -> None:
        self._process.kill()
        self._process.wait()

    def _log(self) -> str:
        return self._errors.read_text()[-4000:]


@dataclass(slots=True)
class Crew:
    """`home`: for the histories of this group. `kinds`: of the members, in turn."""

    home: Path
    bootstrap: str
    group: str
    topic: str
    kinds: Sequence[str]
    session_ms: int
    seed: int
    size: int = 3
    members: list[MemberProcess] = field(default_factory=list)
    killed: int = 0
    frozen: int = 0
    left: int = 0
    joined: int = 0
    _whole_again: float = 0.0
    _leaving: list[MemberProcess] = field(default_factory=list)
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._random = random.Random(self.seed)

    def write(self, event: Event) -> None:
        with (self.home / "crew.jsonl").open("a") as file:
            file.write(to_json(event) + "\n")

    def told(self) -> str:
        return f"{self.joined} joined, {self.left} left, {self.killed} were killed, {self.frozen} frozen"

    def join(self) -> None:
        name = f"{self.group}.{self.joined}"
        kind = self.kinds[self.joined % len(self.kinds)]
        history = self.home / f"{name}.jsonl"
        seed = self._random.randrange(1 << 30)
        orders = Orders(kind, name, self.bootstrap, self.group, self.topic, history, self.session_ms, seed)
        self.members.append(MemberProcess(orders, self.write))
        self.joined += 1

    def fill(self) -> None:
        while len(self.members) < self.size:
            self.join()

    def check_alive(self) -> None:
        self._bury()
        for member in self.members:
            member.check_alive()
            if member.has_lost_its_group:
                raise MemberFailed(f"member {member.name} lost its group, which has one protocol alone")
        if not self.members:
            self.join()

    def stir(self) -> None:
        """Disturb one member, and thaw members that were frozen long enough. Usually a member is
        hurt only after the group has removed the previous one: a group that always waits for a
        member would show nothing else."""
        self.thaw_due()
        self._bury()
        well = [member for member in self.members if member.frozen_until is None]
        what = self._random.choice(["join", "leave", "hurt", "hurt", "hurt"])
        if what == "hurt" and time.monotonic() < self._whole_again and self._random.random() < 0.85:
            return
        if what == "join" or len(well) < 2:
            if len(self.members) < self.size + 2:
                self.join()
            return
        member = self._random.choice(well)
        if what == "hurt":
            self._hurt(member)
        else:
            self.members.remove(member)
            self._leave(member)
        self.fill()

    def _hurt(self, member: MemberProcess) -> None:
        session_s = self.session_ms / 1000
        if self._random.random() < 0.4:
            self.members.remove(member)
            member.kill()
            self.killed += 1
            self._whole_again = time.monotonic() + 1.5 * session_s
            return
        seconds = session_s * self._random.choice([0.4, 1.6, 2.0])
        member.freeze(seconds, before_commit=self._random.random() < 0.6)
        self.frozen += 1
        self._whole_again = time.monotonic() + seconds + 0.3 * session_s

    def _bury(self) -> None:
        """Members that were frozen may have ended since, if the group has members of both
        protocols."""
        for member in self.members[:]:
            if len(self.kinds) > 1 and member.has_lost_its_group:
                self.members.remove(member)

    def thaw_due(self) -> None:
        for member in self.members:
            if member.frozen_until is not None and time.monotonic() > member.frozen_until:
                member.thaw()

    def settle(self) -> None:
        """Thaw all members, and make sure that there is at least one."""
        for member in self.members:
            if member.frozen_until is not None:
                member.thaw()
        self._bury()
        if not self.members:
            self.join()

    def finish(self) -> None:
        """Let all members leave cleanly."""
        for member in self.members:
            self._leave(member)
        self.members.clear()
        for member in self._leaving:
            member.wait()
        self._leaving.clear()

    def _leave(self, member: MemberProcess) -> None:
        member.leave()
        self._leaving.append(member)
        self.left += 1

    def dispose(self) -> None:
        for member in (*self.members, *self._leaving):
            member.dispose()

    def events(self, *others: Path) -> list[Event]:
        """The history of this group, with `others`: files of processes that are not its members."""
        histories = [
            path.read_bytes().splitlines(keepends=True)
            for path in (*sorted(self.home.glob("*.jsonl")), *others)
        ]
        return merge(read_lines(lines) for lines in histories)


@contextmanager
def open_crew(crew: Crew) -> Iterator[Crew]:
    try:
        crew.fill()
        yield crew
    finally:
        crew.dispose()
