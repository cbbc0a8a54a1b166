"""Leads random lives over two engines, until they differ.

A command draws from a generator of its own, made from the seed of the life and the number of the
command. So a life can be led again without some of its commands, and is shrunk that way.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.share import test_key_order_model, test_model, test_parking_model
from tests.share.shadow import coverage, old_tree
from tests.share.shadow.pair import Difference
from tests.share.shadow.worlds import OrderedShadowWorld, ShadowQueue, ShadowWorld

STEPS = 300
"""Of a life."""
_BUSY = {
    "append": 7, "scan": 9, "fetch": 12, "fetch_parked": 3, "release": 2, "retain": 1, "wait": 12,
    "configure": 2, "give_up": 2, "plan_beside_others": 3, "read_beside_others": 3,
}  # fmt: skip
_PARKED, _ORDERED, _QUEUE = (
    {command.__name__: weight for command, weight in commands.items()}
    for commands in (test_parking_model.COMMANDS, test_key_order_model.COMMANDS, test_model.COMMANDS)
)
_KINDS: Sequence[tuple[Any, Mapping[str, float]]] = (
    (ShadowWorld, _PARKED | _BUSY),
    (OrderedShadowWorld, _ORDERED | _BUSY),
    (ShadowWorld, _PARKED | _BUSY | {"fetch_parked": 6}),
    (OrderedShadowWorld, _ORDERED | _BUSY | {"ask": 6, "scan": 12}),
    (ShadowQueue, _QUEUE),
)
_SCENARIOS: Mapping[str, Mapping[str, float]] = {
    "as in the models": {},
    "plans": {"plan": 6, "fetch_parked": 2, "release": 6, "read": 2, "leave": 0.3},
    "reads": {"read": 2, "leave": 3, "keep": 3, "settle": 0.7, "trim": 3, "sweep": 3},
    "kept": {"leave": 3, "keep": 4, "retain": 3, "trim": 3, "acknowledge": 2},
    "failures": {"settle": 0.2, "settle_in_any_order": 3, "acknowledge": 1.5, "leave": 2, "wait": 1.5},
    "lives": {"crash": 4, "power_cut": 8, "unload": 3, "step_clock": 4},
    "given up": {"give_up": 5, "configure": 8, "acknowledge": 1.5, "read": 2},
    "far rows": {"keep": 8, "read_beside_others": 6, "acknowledge": 0.3, "leave": 0, "read": 0.5, "crash": 2},
    "keys": {"ask": 3, "scan": 2, "read": 2, "leave": 0.3},
}
"""The weights of commands are multiplied by these, so that no hard case stays rare."""
_DRAIN_EACH = 4
"""At the end of so many lives, everything is finished: that takes long."""
_SHRINKS = 200
_DRAWING = ("share_partition", "parking", "key_order")


class Command(NamedTuple):
    number: int
    name: str


class Found(NamedTuple):
    """A life in which the engines differ. `last`: the last calls of the engines."""

    seed: int
    commands: Sequence[Command]
    error: BaseException
    last: Sequence[str]
    drains: bool

    @property
    def is_difference(self) -> bool:
        return isinstance(self.error, Difference)

    @property
    def kind(self) -> tuple[type, str]:
        """Without the numbers of its text."""
        return type(self.error), re.sub(r"[0-9.]+", "", str(self.error).partition(": new ")[0])

    def __str__(self) -> str:
        names = ", ".join(f"{number}:{name}" for number, name in self.commands[-40:])
        calls = "\n  ".join(self.last)
        return (
            f"seed {self.seed}, after {len(self.commands)} commands\n"
            f"{type(self.error).__name__}: {self.error}\nlast commands: {names}\nlast calls:\n  {calls}"
        )


class _Draws:
    """random() of both engines: each call in a command returns the same number, so that the order
    of the records for which they draw does not matter."""

    value = 0.0

    def __call__(self) -> float:
        return self.value


_draws = _Draws()


@contextmanager
def alike() -> Iterator[None]:
    """Both engines draw the same numbers meanwhile, and forget keys at once. Imports the old one.
    Raises NoHistory."""
    old_tree.install()
    names = [f"{package}.share.{name}" for package in ("kbroker", old_tree.PACKAGE) for name in _DRAWING]
    for name in names:
        import_module(name)
    coverage.watch()
    with ExitStack() as undo:
        for name, module in list(sys.modules.items()):
            if name.startswith(("kbroker.share.", f"{old_tree.PACKAGE}.share.")):
                if getattr(module, "random", None) is random.random:
                    undo.enter_context(patch.object(module, "random", _draws))
                if hasattr(module, "_FORGET_FROM"):
                    undo.enter_context(patch.object(module, "_FORGET_FROM", 1))
        yield


def commands_of(seed: int, steps: int) -> list[Command]:
    _, weights = _KINDS[seed % len(_KINDS)]
    rnd = Random(seed)
    scenario = _SCENARIOS[rnd.choice(list(_SCENARIOS))]
    scaled = [weight * scenario.get(name, 1) for name, weight in weights.items()]
    chosen = rnd.choices(list(weights), scaled, k=steps)
    return [Command(number, name) for number, name in enumerate(chosen)]


def lead(seed: int, commands: Sequence[Command], *, drains: bool = True) -> Found | None:
    """One life. None: the engines agree."""
    kind, _ = _KINDS[seed % len(_KINDS)]
    done, world = 0, None
    try:
        _draws.value = 0.5
        world = kind(Random(seed))
        for number, name in commands:
            world.rnd = Random(seed * 1_000_003 + number)
            _draws.value = world.rnd.random()
            done += 1
            getattr(world, name)()
            world.check()
        if drains:
            world.drain()
    except Exception as error:
        if isinstance(error, AssertionError) and world is not None and not world.is_sure:
            coverage.seen["life ended by a promise that was not sure"] += 1
            return None
        calls = () if world is None else world.judge.calls
        last = [f"{name}{args!r}{named or ''}" for name, args, named in calls]
        return Found(seed, commands[:done], error, last, drains)
    finally:
        if world is not None:
            coverage.seen.update(getattr(world, "seen", {}))
    return None


def shrunk(found: Found) -> Found:
    """The same difference with fewer commands, if that is found quickly."""
    best, size, left = found, len(found.commands) // 2, _SHRINKS
    while size and left:
        at = 0
        while at < len(best.commands) and left:
            left -= 1
            fewer = [*best.commands[:at], *best.commands[at + size :]]
            again = lead(found.seed, fewer, drains=found.drains)
            if again is not None and again.kind == found.kind:
                best = again
            else:
                at += size
        size //= 2
    return best


def search(first_seed: int, lives: int) -> Found | None:
    """The first difference in so many lives. A broken promise alone is none."""
    found = (lead(seed, commands_of(seed, STEPS)) for seed in range(first_seed, first_seed + lives))
    return next((each for each in found if each is not None and each.is_difference), None)


def run(first_seed: int, steps: int, *, shows: bool = False) -> Found | None:
    """Lives until so many steps are done, or the engines differ."""
    coverage.seen.clear()
    began = shown = time.monotonic()
    done, seed = 0, first_seed
    while done < steps:
        found = lead(seed, commands_of(seed, STEPS), drains=seed // len(_KINDS) % _DRAIN_EACH == 0)
        if found is not None and not isinstance(found.error, AssertionError):
            return found
        if found is not None:  # The engines agree.
            coverage.seen["promise broken by both engines"] += 1
            if shows:
                print(found, flush=True)
        done, seed = done + STEPS, seed + 1
        if shows and time.monotonic() - shown > 10:
            shown = time.monotonic()
            rate = done / (shown - began)
            print(f"{done:>9} steps, seeds {first_seed} to {seed - 1}, {rate:.0f}/s", flush=True)
    if shows:
        lasted_s = time.monotonic() - began
        print(f"{done} steps, seeds {first_seed} to {seed - 1}, {lasted_s:.0f} s: no difference")
    return None
