"""Keys and maps in bytewise order, compared with sorted dicts under random changes."""

from __future__ import annotations

import random

import pytest

from kbroker.storage.keyvalue import sorted_keys
from kbroker.storage.keyvalue.key_ranges import RECORD_BYTES, prefix_end
from kbroker.storage.keyvalue.memory_map import MemoryMap, loaded
from kbroker.storage.keyvalue.sorted_keys import SortedKeys
from kbroker.storage.spi import Change


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_keys, "_BLOCK_KEYS", 3)


def _some_key(rng: random.Random) -> bytes:
    """Some begin with ff, after which no key of one byte follows."""
    return rng.choice((b"a", b"b", b"\xff")) + rng.randbytes(rng.randrange(2))


@pytest.mark.parametrize("seed", range(5))
def test_keys_stay_in_order(seed: int) -> None:
    rng = random.Random(seed)
    model = {_some_key(rng) for _ in range(30)}
    keys = SortedKeys(model)
    for _ in range(2000):
        key = _some_key(rng)
        if key in model:
            keys.remove(key)
            model.discard(key)
        else:
            keys.add(key)
            model.add(key)
        in_order = sorted(model)
        first = rng.choice((b"", _some_key(rng)))
        end = rng.choice((None, _some_key(rng)))
        assert list(keys.since(first)) == [each for each in in_order if each >= first]
        assert keys.between(first, end) == [
            each for each in in_order if each >= first and (end is None or each < end)
        ]
        prefix = rng.choice((b"", b"a", b"\xff", b"\xff\xff"))
        assert keys.between(prefix, prefix_end(prefix)) == [
            each for each in in_order if each.startswith(prefix)
        ]


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_map_has_what_its_changes_left(at_once: int) -> None:
    rng = random.Random(at_once)
    model: dict[bytes, bytes] = {}
    found, all_changes = MemoryMap(), list[Change]()
    for _ in range(300):
        changes: list[Change] = [
            (_some_key(rng), rng.choice((None, rng.randbytes(rng.randrange(9))))) for _ in range(at_once)
        ]
        found.apply(changes)
        all_changes += changes
        for key, value in changes:
            model.update({key: value}) if value is not None else model.pop(key, None)
        in_order = sorted(model.items())
        assert len(found) == len(model)
        assert list(found.scan(b"")) == list(found.copy().scan(b"")) == in_order
        assert list(found.scan(b"b")) == [entry for entry in in_order if entry[0].startswith(b"b")]
        within = [entry for entry in in_order if b"a\x40" <= entry[0] < b"c"]
        assert found.entries(b"a\x40", b"c", 10) == within[:10]
        sizes = [len(key) + len(value) + RECORD_BYTES for key, value in in_order]
        assert found.live_bytes == found.copy().live_bytes == sum(sizes)
        assert found.piece(b"", 1) == in_order[:1]
        assert found.piece(b"", sum(sizes)) == in_order
    assert list(loaded(all_changes).scan(b"")) == sorted(model.items())
