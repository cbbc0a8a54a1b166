"""The third profile: scripts that restart their broker, or alter its settings. They run one after
the other, on a broker of their own.

    @restarting_script("DLQ-32")
    def killed(s: Restartable) -> None:
        topic = s.topic()
        s.restart()                                  # kill -9, and a start on the same directory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from tests.differential.script import SCRIPTS, Session, Topic, script

Run: TypeAlias = "Callable[[Restartable], None]"
BROKER, NODE = 4, "1"
"""Kind and name of the resource that has the broker's settings."""
_SET, _DELETE = 0, 1


class Broker(Protocol):
    """What a script needs of a broker that it may kill."""

    port: int

    def kill(self) -> None: ...

    def start(self) -> None: ...


@dataclass
class Restartable(Session):
    broker: Broker | None = None

    def restart(self, *topics: Topic) -> None:
        """Kill the broker with SIGKILL and start it; returns when it leads `topics` again. All
        connections and sessions are gone."""
        assert self.broker is not None
        self.broker.kill()
        for name in list(self._connections):
            self.disconnect(name)
        self.broker.start()
        for topic in topics:
            self.learn(topic.name)

    @contextmanager
    def settings(self, **configs: str) -> Iterator[None]:
        """The broker has these settings inside the block, and afterwards its own. Names with _ for
        the dots."""
        wanted = {name.replace("_", "."): value for name, value in configs.items()}
        self._alter(wanted)
        try:
            yield
        finally:
            self._alter(dict.fromkeys(wanted))

    def _alter(self, wanted: Mapping[str, str | None]) -> None:
        rows = [
            {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
            for name, value in wanted.items()
        ]
        resource = {"resource_type": BROKER, "resource_name": NODE, "configs": rows}
        (row,) = self.prepare(
            "incremental_alter_configs", 1, resources=[resource], validate_only=False
        ).responses
        if row.error_code.value:
            raise AssertionError(f"{self.name}: cannot configure the broker: {row.error_message}")
        self.until(lambda: self._has(wanted), "the broker has its settings")

    def _has(self, wanted: Mapping[str, str | None]) -> bool:
        resource = {"resource_type": BROKER, "resource_name": NODE, "configuration_keys": list(wanted)}
        answer = self.prepare(
            "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
        )
        own = {row.name: row.value for row in answer.results[0].configs if row.config_source == 2}
        return all(own.get(name) == value for name, value in wanted.items())


def restarting_script(*rules: str, seconds: float = 1.0) -> Callable[[Run], Run]:
    """Register a script of this profile; see `script.script`."""

    def registered(run: Run) -> Run:
        def with_restarts(session: Session) -> None:
            assert isinstance(session, Restartable)
            run(session)

        with_restarts.__module__, with_restarts.__name__ = run.__module__, run.__name__
        script(*rules, seconds=seconds, alone=True)(with_restarts)
        name = f"{run.__module__.rsplit('.', 1)[-1]}.{run.__name__}"
        SCRIPTS[name] = replace(SCRIPTS[name], restarts=True)
        return run

    return registered
