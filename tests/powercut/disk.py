"""A model of a disk: its content while a recorded process works, and the states that a power cut
may leave.

The model is stricter than any one file system, and stays within what POSIX allows:

    file content   a write, a change of size and an allocation are in memory first. A successful
                   fsync or fdatasync of the file (or syncfs) makes everything durable that was
                   logged before the sync began. A write through an O_DSYNC descriptor is durable
                   when it returns. Each page of 4 KiB that is not durable may have any version
                   since it last was, independently of all others; the size may be old or new;
                   pages never written read as zeros.
    shrinking      a truncation belongs to the metadata of the file and is ordered: nothing written
                   after it survives without it.
    directories    creating, linking, renaming, unlinking, mkdir and rmdir are in memory first, and
                   durable after fsync of a directory that they concern; fsync of a file does not
                   cover its name. Of the others, either any subset survives ("strict") or a prefix
                   in order ("ordered", as with journalling file systems). A rename is atomic; a
                   lost unlink brings the old file back; the contents of a directory whose name was
                   lost are gone. RocksDB alone relies on what Linux file systems do beyond POSIX
                   (fsync of a new file keeps its name too): it renames CURRENT to name a manifest
                   that it has synced, and syncs the directory only afterwards. The model grants
                   that for RocksDB's files only (`names_by_fsync`).
    failed syncs   make nothing durable.

Reads the recorder's log entries; independent of brokers and engines.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.powercut.recording import CREATED, DSYNC, Entry, Op

PAGE = 4096
ZEROS = bytes(PAGE)
KEEP = (0.0, 0.05, 0.5, 0.95, 1.0)
"""How likely each unsynced page or name survives, chosen again for each state: some disks lose
everything, some next to nothing."""


@dataclass(slots=True)
class Content:
    """A file's bytes as sparse pages; a missing page reads as zeros."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> Content:
        return Content(self.size, dict(self.pages))

    def write(self, offset: int, data: bytes) -> range:
        """Returns the numbers of the pages touched."""
        end = offset + len(data)
        for page in (touched := range(offset // PAGE, -(-end // PAGE))):
            start = page * PAGE
            low, high = max(offset, start), min(end, start + PAGE)
            old = self.pages.get(page, ZEROS)
            self.pages[page] = old[: low - start] + data[low - offset : high - offset] + old[high - start :]
        self.size = max(self.size, end)
        return touched

    def resize(self, size: int) -> None:
        if size < self.size:
            for page in [page for page in self.pages if page * PAGE >= size]:
                del self.pages[page]
            if size % PAGE and size // PAGE in self.pages:
                self.pages[size // PAGE] = cut_page(self.pages[size // PAGE], size // PAGE, size)
        self.size = size

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            for page, data in self.pages.items():
                if page * PAGE < self.size:
                    file.seek(page * PAGE)
                    file.write(data[: self.size - page * PAGE])
            file.truncate(self.size)

    @classmethod
    def load(cls, path: Path) -> Content:
        """Without pages of zeros, and without reading holes: engines preallocate a lot."""
        content = cls(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            for start, end in _written_ranges(file.fileno(), content.size):
                file.seek(start)
                for page in range(start // PAGE, -(-end // PAGE)):
                    data = file.read(PAGE)
                    if data.strip(b"\0"):
                        content.pages[page] = data.ljust(PAGE, b"\0")
        return content

    def written(self) -> dict[int, bytes]:
        """The pages that are not all zeros: two contents are equal if these and the sizes are."""
        return {page: data for page, data in self.pages.items() if data.strip(b"\0")}


def _written_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that are not holes, page by page."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start // PAGE * PAGE, end


def cut_page(data: bytes, page: int, size: int) -> bytes:
    """The page, with zeros after the end of a file of this size."""
    return data[: max(0, size - page * PAGE)].ljust(PAGE, b"\0")


class _Change(NamedTuple):
    """A write of `data` at `place`, or without data a change of size to `place`. `forced`: durable
    when it returned."""

    place: int
    data: bytes | None
    forced: bool = False


class _File:
    """One file's content: the durable part, and the changes since."""

    def __init__(self, base: Content) -> None:
        self.base = base
        self.pending: list[_Change] = []
        self.folded = 0

    @property
    def changes(self) -> int:
        """The number of changes ever made: a sync that begins now makes this many durable."""
        return self.folded + len(self.pending)

    def make_safe(self, changes: int) -> None:
        count = max(0, changes - self.folded)
        for change in self.pending[:count]:
            _apply(self.base, change)
        del self.pending[:count]
        self.folded += count

    def latest(self) -> Content:
        content = self.base.copy()
        for change in self.pending:
            _apply(content, change)
        return content

    def safe(self, chooser: random.Random) -> Content:
        """Only the durable content; a write through O_DSYNC may be lost if others precede it."""
        return (
            self.survivor(chooser, 0.0) if any(change.forced for change in self.pending) else self.base.copy()
        )

    def survivor(self, chooser: random.Random, keep: float) -> Content:
        """A content that a power cut may leave now."""
        if not self.pending:
            return self.base.copy()
        now, sizes, shrunk = self.base.copy(), [self.base.size], self.base.size
        versions: dict[int, list[bytes]] = {}
        for change in self.pending[: self._metadata_reached(chooser)]:
            before = now.size
            touched = _apply(now, change)
            if now.size < before:
                sizes, shrunk = [now.size], min(shrunk, now.size)
                for page, chain in versions.items():
                    versions[page] = [cut_page(version, page, now.size) for version in chain]
            else:
                sizes.append(now.size)
            for page in touched:
                old = versions.get(page) or [cut_page(self.base.pages.get(page, ZEROS), page, shrunk)]
                versions[page] = [now.pages[page]] if change.forced else [*old, now.pages[page]]
            if change.forced and change.data is not None:
                sizes = [max(size, change.place + len(change.data)) for size in sizes]
        content = Content(chooser.choice(sizes) if chooser.random() >= keep else sizes[-1])
        for page, data in now.pages.items():
            chain = versions.get(page, [data])
            content.pages[page] = (
                chain[-1] if chooser.random() < keep else chooser.choice(chain[:-1] or chain)
            )
        return content

    def _metadata_reached(self, chooser: random.Random) -> int:
        """How many of the pending changes can survive: those up to a lost truncation, if one was
        lost."""
        size, shrinks, least = self.base.size, [], -1
        for place, change in enumerate(self.pending):
            if change.data is None and change.place < size:
                shrinks.append(place)
            size = change.place if change.data is None else max(size, change.place + len(change.data))
            least = place if change.forced else least
        ends = [place for place in shrinks if place > least]
        return chooser.choice([*ends, len(self.pending)])


def _apply(content: Content, change: _Change) -> range:
    if change.data is not None:
        return content.write(change.place, change.data)
    content.resize(change.place)
    return range(0)


Node: TypeAlias = int
"""A file or a directory by number; ROOT is the recorded directory itself."""
ROOT: Node = 0
Tree: TypeAlias = dict[Node, dict[str, Node]]
"""Directory -> name -> what it names. Every directory has a key, files have none."""


class _Naming(NamedTuple):
    """One operation on names: `gone` loses its name, `named` gets one; a rename does both."""

    gone: tuple[Node, str] | None
    named: tuple[Node, str] | None
    node: Node
    is_link: bool = False

    def concerns(self, directory: Node) -> bool:
        return any(place is not None and place[0] == directory for place in (self.gone, self.named))

    def apply(self, tree: Tree) -> None:
        # whatever else was lost: after a rename the old name is gone
        if self.gone and self.named and not self.is_link:
            for names in tree.values():
                for name in [name for name, node in names.items() if node == self.node]:
                    del names[name]
        if self.gone:
            tree.setdefault(self.gone[0], {}).pop(self.gone[1], None)
        if self.named:
            tree.setdefault(self.named[0], {})[self.named[1]] = self.node


State: TypeAlias = dict[str, Content | None]
"""Path -> content, or None for a directory; parents precede their entries."""


class Disk:
    """Follows a log, entry by entry; `survivor` returns a state that a power cut now may leave.

    `base`: the content before the log. `names_by_fsync`: the paths for which fsync of a file makes
    its name durable as well.
    """

    def __init__(
        self, base: Path | None = None, *, names_by_fsync: Callable[[str], bool] = lambda path: False
    ) -> None:
        self._names_by_fsync = names_by_fsync
        self._named_by_fsync: set[Node] = set()
        self._now: Tree = {ROOT: {}}
        self._safe: Tree = {ROOT: {}}
        self._pending: list[tuple[_Naming, bool]] = []
        self._folded = 0
        self._files: dict[Node, _File] = {}
        self._directories: set[Node] = {ROOT}
        self._objects: dict[int, Node] = {}
        self._syncs: dict[int, list[tuple[_File, int]]] = {}
        self._name_syncs: dict[int, tuple[Node | None, int]] = {}
        self._linked: set[Node] = set()
        self._last_node = ROOT
        if base is not None:
            self._load(base, ROOT)
            self._safe = {directory: dict(names) for directory, names in self._now.items()}

    def _load(self, path: Path, directory: Node) -> None:
        for child in sorted(path.iterdir()):
            node = self._new_node()
            self._now[directory][child.name] = node
            if child.is_dir():
                self._directories.add(node)
                self._now[node] = {}
                self._load(child, node)
            else:
                self._files[node] = _File(Content.load(child))

    def _new_node(self) -> Node:
        self._last_node += 1
        return self._last_node

    def apply(self, entry: Entry) -> None:
        match entry.op:
            case Op.OPEN:
                self._open(entry)
            case Op.WRITE:
                self._file(entry).pending.append(_Change(entry.offset, entry.data, bool(entry.flags & DSYNC)))
            case Op.TRUNCATE:
                self._file(entry).pending.append(_Change(entry.offset, None))
            case Op.SYNC_BEGIN:
                self._syncs[entry.offset] = [(self._file(entry), self._file(entry).changes)]
                if self._objects[entry.object] in self._named_by_fsync:
                    self._name_syncs[entry.offset] = (self._objects[entry.object], self._namings)
            case Op.DIRSYNC_BEGIN:
                self._name_syncs[entry.offset] = (self._resolve(entry.path), self._namings)
            case Op.ALLSYNC_BEGIN:
                self._syncs[entry.offset] = [(file, file.changes) for file in self._files.values()]
                self._name_syncs[entry.offset] = (None, self._namings)
            case Op.SYNC_END | Op.DIRSYNC_END | Op.ALLSYNC_END:
                self._synced(entry)
            case Op.RENAME | Op.LINK | Op.UNLINK | Op.RMDIR | Op.MKDIR:
                self._rename(entry)
            case Op.UNSUPPORTED:
                raise AssertionError(f"the recorder could not record {entry.path2}: {entry.path}")
            case Op.MARK | Op.FAULT:
                pass

    @property
    def _namings(self) -> int:
        return self._folded + len(self._pending)

    def _file(self, entry: Entry) -> _File:
        return self._files[self._objects[entry.object]]

    def _open(self, entry: Entry) -> None:
        directory, name = self._place(entry.path)
        node = self._now[directory].get(name)
        if entry.flags & CREATED or node is None:
            node = self._new_node()
            self._files[node] = _File(Content())
            self._name(_Naming(None, (directory, name), node))
            if self._names_by_fsync(entry.path):
                self._named_by_fsync.add(node)
        self._objects[entry.object] = node

    def _synced(self, entry: Entry) -> None:
        files, names = self._syncs.pop(entry.offset, []), self._name_syncs.pop(entry.offset, None)
        if entry.result:
            return
        for file, changes in files:
            file.make_safe(changes)
        if names is not None:
            node, count = names
            for place in range(count - self._folded):
                naming, _ = self._pending[place]
                if (
                    node is None
                    or naming.concerns(node)
                    or (node in self._named_by_fsync and node == naming.node)
                ):
                    self._pending[place] = (naming, True)
        while self._pending and self._pending[0][1]:
            self._pending.pop(0)[0].apply(self._safe)
            self._folded += 1

    def _rename(self, entry: Entry) -> None:
        place = self._place(entry.path)
        if entry.op is Op.MKDIR:
            node = self._new_node()
            self._directories.add(node)
            self._now[node] = {}
            self._name(_Naming(None, place, node))
            return
        found = self._now[place[0]].get(place[1])
        if found is None:  # written by stdio: bytes unknown; a test lists such files
            found = self._new_node()
            self._files[found] = _File(Content())
        if entry.op is Op.LINK:
            self._linked.add(found)
            self._name(_Naming(None, self._place(entry.path2), found))
        elif entry.op is Op.RENAME:
            self._name(_Naming(place, self._place(entry.path2), found, found in self._linked))
        else:
            self._name(_Naming(place, None, found))

    def _name(self, naming: _Naming) -> None:
        naming.apply(self._now)
        self._pending.append((naming, False))

    def _place(self, path: str) -> tuple[Node, str]:
        parent, _, name = path.rpartition("/")
        return self._resolve(parent), name

    def _resolve(self, path: str) -> Node:
        node = ROOT
        for name in path.split("/") if path else ():
            node = self._now[node][name]
        return node

    def latest(self) -> State:
        """The state that the process itself would read."""
        return self._state(self._now, lambda file: file.latest())

    def survivor(self, chooser: random.Random) -> State:
        """One of the states that a power cut at this moment may leave."""
        tree: Tree = {directory: dict(names) for directory, names in self._safe.items()}
        keep = chooser.choice(KEEP)
        least = max((place + 1 for place, (_, forced) in enumerate(self._pending) if forced), default=0)
        ordered = chooser.random() < 0.5
        reached = chooser.randint(least, len(self._pending))
        for place, (naming, forced) in enumerate(self._pending):
            if forced or (place < reached if ordered else chooser.random() < keep):
                naming.apply(tree)
        return self._state(tree, lambda file: file.survivor(chooser, chooser.choice(KEEP)))

    def survivor_of_parts(self, chooser: random.Random, is_kept: Callable[[str], bool]) -> State:
        """One of these states: at some paths everything has reached the disk, at the others nothing
        that was not synced.

        Files are written back one by one: this state directly reveals code that relies on the order
        between two files.
        """
        tree: Tree = {directory: dict(names) for directory, names in self._safe.items()}
        directories = {
            ROOT: "",
            **{node: path for path, node in self._walk(self._now, ROOT, "") if node in self._directories},
        }
        for naming, forced in self._pending:
            places = [place for place in (naming.gone, naming.named) if place is not None]
            if forced or all(
                is_kept(f"{directories.get(directory, '')}/{name}".lstrip("/")) for directory, name in places
            ):
                naming.apply(tree)
        state: State = {}
        for path, node in self._walk(tree, ROOT, ""):
            if node in self._directories:
                state[path] = None
            else:
                file = self._files[node]
                state[path] = file.latest() if is_kept(path) else file.safe(chooser)
        return state

    def _state(self, tree: Tree, content: object) -> State:
        assert callable(content)
        state: State = {}
        for path, node in self._walk(tree, ROOT, ""):
            state[path] = None if node in self._directories else content(self._files[node])
        return state

    def _walk(self, tree: Tree, directory: Node, prefix: str) -> Iterator[tuple[str, Node]]:
        for name, node in sorted(tree.get(directory, {}).items()):
            yield prefix + name, node
            if node in self._directories:
                yield from self._walk(tree, node, f"{prefix}{name}/")


def differences(
    state: State, directory: Path, is_seen: Callable[[str], bool] = lambda path: True
) -> list[str]:
    """The paths at which a state and real files differ. `is_seen`: the paths to compare."""
    names = {str(path.relative_to(directory)) for path in directory.rglob("*")} | state.keys()
    return [name for name in sorted(names) if is_seen(name) and not _is_same(state, name, directory / name)]


def _is_same(state: State, name: str, path: Path) -> bool:
    if name not in state or not path.exists():
        return False
    content = state[name]
    if content is None or path.is_dir():
        return content is None and path.is_dir()
    found = Content.load(path)
    return (content.size, content.written()) == (found.size, found.written())


def save(state: State, directory: Path) -> None:
    """Write a state into a new directory."""
    os.mkdir(directory)
    for path, content in state.items():
        if content is None:
            os.mkdir(directory / path)
        else:
            content.save(directory / path)
