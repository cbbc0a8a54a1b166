"""A private broker for tests and the demo: a subprocess with its own port and data directory, which
can be killed and restarted.

It is a subprocess and not a task because callers kill it with SIGKILL, freeze it, and restart it on
the same directory. They control it only through its command line, ready line, port and signals.

Ports are chosen below the kernel's range for outgoing connections. A client that keeps connecting
to a killed broker's port in that range may connect to itself. The restarted broker then finds its
port taken.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.settings.properties import as_properties

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection
    from kbroker.client.secured_setup import SecuredSetup
    from kbroker.client.security import ClientSecurity

READY_PREFIX = "kbroker ready on "
_SECRET = re.compile(r"password|jaas\.config|keystore\.key$")
"""Names of settings whose values must not be on a command line, which every user can read."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class BrokerStartFailed(Exception):
    """The process ended or timed out before its ready line. The message ends with the end of its
    log."""

    def __init__(self, text: str, exit_code: int | None) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class RunningBroker:
    """One broker over all its starts (lives).

    - `home` holds the log file, and the data directory unless `data_dir` is given.
    - `command` replaces `python -m kbroker`, for instance by a wrapper.
    - `config`: settings; those that hold passwords are passed in a file.
    - `env` is added to the environment of the process.
    - `port`: of the first listener, if `config` has the setting listeners; otherwise of --listen.
    - `protocol`: SSL, SASL_PLAINTEXT or SASL_SSL: its only listener has this protocol, with
      certificates and users of its own (secured_setup.py). `config` overrides that.
    - `security`: how to connect, if `config` gives it a listener with TLS or SASL. None: plainly.

    Raises OperatorError if a protocol with TLS lacks the package for certificates.
    """

    def __init__(
        self,
        home: Path,
        *,
        storage: str = "segment",
        state_storage: str | None = None,
        data_dir: Path | None = None,
        durability: str = "disk",
        config: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        protocol: str = "PLAINTEXT",
        security: ClientSecurity | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = port if port is not None else free_port()
        self.data_dir = data_dir or home / "data"
        self.storage, self.state_storage, self.durability = storage, state_storage or storage, durability
        self._setup = _setup(home, protocol)
        self.config = {**(self._setup.broker_config(self.port) if self._setup else {}), **(config or {})}
        self.log_file = home / "broker.log"
        self._secrets_file = home / "secrets.properties"
        self._clients_folder = home
        self.ready_line = ""
        self.security = self._setup.security() if self._setup and security is None else security
        self._extra_args, self._command, self._env = list(extra_args), command, env
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for the client setting `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """`bootstrap.servers` and the settings of security for a confluent-kafka client. `user`:
        made by create_user; None: the one that may do everything, if there are users."""
        security = self.security if user is None else self._secured().security(user)
        return {"bootstrap.servers": self.bootstrap, **(security.library_settings() if security else {})}

    def command_config(self, user: str | None = None) -> Path:
        """A file with the same by Kafka's names, for `--command-config` of kbroker's commands and
        of Kafka's tools. Only its owner can read it."""
        from kbroker.client.secured_setup import ADMIN

        name = ADMIN if user is None else user
        settings = {"security.protocol": "PLAINTEXT"}
        if user is not None or self._setup is not None:
            settings = self._secured().client_config(name)
        path = self._clients_folder / f"{name}.properties"
        path.touch(mode=0o600)
        path.write_text(as_properties(settings))
        return path

    def create_user(self, user: str, password: str | None = None) -> None:
        """For a broker with a `protocol`: a user without rights, with this password or a random
        one, or with a certificate. Raises KafkaError and BrokerUnreachable."""
        self._secured().add_user(user, password, self.connect)

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def arguments(self) -> list[str]:
        """The `kbroker` command line of the next start."""
        args = [
            "start",
            "--data-dir",
            str(self.data_dir),
            "--storage",
            self.storage,
            "--state-storage",
            self.state_storage,
        ]
        args += ["--durability", self.durability]
        if "listeners" not in self.config:
            args += ["--listen", self.bootstrap]
        for name, value in self.config.items():
            if not _SECRET.search(name):
                args += ["--config", f"{name}={value}"]
        if self._secrets():
            args += ["--config-file", str(self._secrets_file)]
        return args + self._extra_args

    def _secrets(self) -> str:
        """Lines of a configuration file; empty if there are none."""
        return as_properties({name: value for name, value in self.config.items() if _SECRET.search(name)})

    def start(self) -> None:
        """Returns when connections are accepted. Raises BrokerStartFailed."""
        assert not self.is_running, "this broker is running already"
        if self._process is not None:
            self._ended(self._process)  # It ended by itself; its pipe is still open.
        command = [*(self._command or [sys.executable, "-m", "kbroker"]), *self.arguments()]
        env = {**_environment(), **(self._env or {})}
        if secrets := self._secrets():
            self._secrets_file.touch(mode=0o600)
            self._secrets_file.write_text(secrets)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        try:
            self.ready_line = self._wait_ready(self._process)
            if self._setup is not None:
                self._setup.store_users(self._connect_first)
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if readable else ""
        if line.startswith(READY_PREFIX):
            return line.rstrip("\n")
        code = process.wait(STOP_TIMEOUT_S) if readable and not line else process.poll()
        what = (
            f"ended with exit code {code}"
            if code is not None
            else f"printed {line!r} within {START_TIMEOUT_S:.0f} s"
        )
        raise BrokerStartFailed(
            f"the broker {what} instead of its ready line; its log ends:\n{self.log_tail()}", code
        )

    def stop(self) -> None:
        """Send SIGTERM and wait. Raises AssertionError unless the exit code is 0."""
        code = self.terminate()
        assert code == 0, (
            f"the broker ended with exit code {code} on SIGTERM; its log ends:\n{self.log_tail()}"
        )

    def terminate(self) -> int:
        """Send SIGTERM and wait. Returns the exit code (negative: the signal that ended it)."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        return self._ended(process)

    def wait(self) -> int:
        """Wait until the process ends by itself; returns the exit code."""
        assert self._process is not None
        return self._ended(self._process)

    def kill(self) -> None:
        """Send SIGKILL: the broker flushes nothing. No error if it has ended already."""
        if self._process is not None:
            self._process.kill()
            self._ended(self._process)

    kill9 = kill

    def restart(self) -> None:
        """Stop the broker if it runs, then start it on the same port and directory."""
        if self.is_running:
            self.stop()
        self.start()

    def tell_stacks(self) -> None:
        """Let the broker log the stacks of its threads (`kbroker start` does so on SIGQUIT). For a
        broker that does not respond."""
        self._running().send_signal(signal.SIGQUIT)

    def sigstop(self) -> None:
        """Freeze the process: its connections stay open, and requests get no response."""
        self._running().send_signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def logs(self) -> str:
        """The stderr output of all lives of this broker."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def anonymous_memory_bytes(self) -> int:
        """Memory of the process without the page cache of mapped segments (RssAnon; Linux only)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise OSError("no RssAnon in /proc/PID/status")

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Raises KafkaError, for instance topic_already_exists."""
        from kbroker.client import admin

        with self.connect() as connection:
            admin.create_topic(connection, name, partitions=partitions, config=config or {})

    def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        """Sets `share.*` configs of a group, which need not exist yet. Raises KafkaError."""
        from kbroker.client import admin

        with self.connect() as connection:
            admin.alter_configs(connection, admin.ResourceType.GROUP, group_id, set_configs=config)

    def create_queue(self, name: str, group_config: Mapping[str, str] | None = None) -> None:
        """A work queue, as `kbroker queues create` makes it. `group_config`: settings of its share
        group that differ from a new queue's, such as {"kbroker.queue.prefetch": "8"}. Raises
        KafkaError and QueueRefused."""
        from kbroker.client.queues.plan import plan
        from kbroker.client.queues.settings import Part, Wish

        with self.connect() as connection:
            for step in plan(connection, Wish(name, configs={Part.GROUP: group_config or {}})).steps:
                step.run(connection)

    def connect(self, *, client_id: str = "test", timeout_s: float = 30.0) -> Connection:
        """Raises BrokerUnreachable."""
        return self._connected(client_id, timeout_s, self.security)

    def _connect_first(self) -> Connection:
        """Before the broker has the users."""
        return self._connected("test", START_TIMEOUT_S, self._secured().security(mechanism="PLAIN"))

    def _connected(self, client_id: str, timeout_s: float, security: ClientSecurity | None) -> Connection:
        from kbroker.client.rpc import Connection
        from kbroker.client.security import PLAINTEXT

        return Connection(
            self.host,
            self.port,
            client_id=client_id,
            timeout_s=timeout_s,
            security=security or PLAINTEXT,
        )

    def _secured(self) -> SecuredSetup:
        if self._setup is None:
            raise ValueError("only a broker with `protocol` has users")
        return self._setup

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        assert self._process.poll() is None, f"the broker is not running; its log ends:\n{self.log_tail()}"
        return self._process

    def _ended(self, process: subprocess.Popen[str]) -> int:
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def log_tail(self, characters: int = 4000) -> str:
        """The end of `logs()`."""
        return self.logs()[-characters:]


def _setup(home: Path, protocol: str) -> SecuredSetup | None:
    """Raises ValueError for an unknown protocol."""
    if protocol == "PLAINTEXT":
        return None
    from kbroker.client.secured_setup import SecuredSetup
    from kbroker.settings.listeners import SecurityProtocol

    return SecuredSetup(home, SecurityProtocol(protocol))


def _environment() -> dict[str, str]:
    """This process's environment without KBROKER_START_*. Those are options for a broker that a
    person starts; this one gets all its options on the command line."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KBROKER_START_")}


def free_port() -> int:
    """A free port of 127.0.0.1 below the kernel's range for outgoing connections (see the module
    docstring)."""
    chooser = random.SystemRandom()
    for _ in range(100):
        port = chooser.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port found between 12000 and 32000")
