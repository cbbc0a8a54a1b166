"""Random commands against the share-partition and the dictionary model of queue_model.py.

The default run is short. `KBROKER_MODEL_COMMANDS=n pytest -m full tests/share/test_model.py` runs n
commands (a million unless told otherwise) from `KBROKER_MODEL_SEED`; a failing history is named by
its seed.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.share.queue_model import CheckedQueue

# How frequent each command is.
COMMANDS = {
    CheckedQueue.fetch: 30,
    CheckedQueue.acknowledge: 25,
    CheckedQueue.settle: 25,
    CheckedQueue.append: 6,
    CheckedQueue.wait: 5,
    CheckedQueue.expire: 5,
    CheckedQueue.release: 3,
    CheckedQueue.compact: 1,
    CheckedQueue.trim: 1,
    CheckedQueue.configure: 3,
    CheckedQueue.reload: 1,
    CheckedQueue.unload: 1,
    CheckedQueue.take_dead_letters: 5,
    CheckedQueue.write_dead_letters: 5,
    CheckedQueue.end_dead_letters: 5,
    CheckedQueue.give_back_dead_letters: 1,
    CheckedQueue.retry: 1,
}
COMMANDS_PER_HISTORY = 500

randoms = st.randoms(use_true_random=False)


class ShareLife(RuleBasedStateMachine):
    @initialize(rnd=randoms)
    def begin(self, rnd: Random) -> None:
        self.queue = CheckedQueue(rnd)

    @rule(
        rnd=randoms,
        command=st.sampled_from([command for command, weight in COMMANDS.items() for _ in range(weight)]),
    )
    def do(self, rnd: Random, command: object) -> None:
        self.queue.rnd = rnd
        command(self.queue)  # type: ignore[operator]

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check()

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.rnd = Random(0)
            self.queue.drain()


TestShareLife = ShareLife.TestCase
TestShareLife.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


def run_history(seed: int, commands: int) -> int:
    """Returns how many commands were run."""
    rnd = Random(seed)
    queue = CheckedQueue(rnd)
    done = 0
    for command in rnd.choices(list(COMMANDS), list(COMMANDS.values()), k=commands):
        command(queue)
        queue.check()
        done += 1
    queue.drain()
    return done


@pytest.mark.parametrize("seed", range(40))
def test_histories(seed: int) -> None:
    assert run_history(seed, 250) == 250


@pytest.mark.full
def test_many_histories() -> None:
    wanted = int(os.environ.get("KBROKER_MODEL_COMMANDS", "1000000"))
    seed = int(os.environ.get("KBROKER_MODEL_SEED", "1000"))
    done = histories = 0
    while done < wanted:
        try:
            done += run_history(seed + histories, COMMANDS_PER_HISTORY)
        except Exception as error:
            raise AssertionError(f"history with seed {seed + histories}") from error
        histories += 1
    print(f"{done} commands in {histories} histories")
    assert done >= wanted
