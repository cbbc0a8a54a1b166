"""Loading of plugins: names, lazy import, and one clear line when something is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.errors import OperatorError
from kbroker.groups.assignors.range import RangeAssignor
from kbroker.groups.assignors.uniform import UniformAssignor
from kbroker.storage.spi import LogStoreFactory, StateStoreFactory


def install(
    directory: Path, name: str, *, group: str = plugins.LOG_STORE, engine: str, module: str | None
) -> None:
    """A distribution as pip installs it: metadata with an entry point, and a module."""
    info = directory / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{engine} = {name}_module:FACTORY\n")
    if module is not None:
        (directory / f"{name}_module.py").write_text(module)


@pytest.fixture
def plugin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("group", [plugins.LOG_STORE, plugins.STATE_STORE])
def test_the_built_in_engines_are_there(group: str) -> None:
    assert {"segment", "lmdb", "rocksdb", "memory"} <= set(plugins.names(group))


@pytest.mark.parametrize("name", ["segment", "lmdb", "rocksdb", "memory"])
def test_the_built_in_engines_load(name: str) -> None:
    assert isinstance(plugins.log_store_factory(name), LogStoreFactory)
    assert isinstance(plugins.state_store_factory(name), StateStoreFactory)


@pytest.mark.parametrize("name", ["default", "noop"])
def test_the_built_in_persisters_load(name: str) -> None:
    assert plugins.persister_factory(name) is not None


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        OperatorError, match=r"unknown storage engine 'zebra': installed are .*lmdb.*rocksdb.*segment"
    ):
        plugins.log_store_factory("zebra")
    with pytest.raises(OperatorError, match=r"unknown persister 'zebra': installed are .*default.*noop"):
        plugins.persister_factory("zebra")


def test_a_plugin_comes_through_the_same_door(plugin_directory: Path) -> None:
    install(plugin_directory, "goodplugin", engine="good", module="FACTORY = 'made by the plugin'\n")
    assert "good" in plugins.names(plugins.LOG_STORE)
    assert plugins.log_store_factory("good") == "made by the plugin"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "ModuleNotFoundError"),
        ("import no_such_library\n", "no_such_library"),
        ("raise RuntimeError('broken\\nin two lines')\n", "RuntimeError: broken in two lines"),
        ("OTHER = 1\n", "AttributeError"),
    ],
)
def test_a_broken_plugin_is_named_in_one_line(
    plugin_directory: Path, module: str | None, reason: str
) -> None:
    name = f"broken{abs(hash(reason)) % 10**6}"
    install(plugin_directory, name, engine="broken", module=module)
    with pytest.raises(OperatorError) as caught:
        plugins.log_store_factory("broken")
    text = str(caught.value)
    assert f"{name} 1.2" in text
    assert reason in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (["uniform", "range"], ["uniform", "range"]),
        (["range"], ["range"]),
        (["org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform"], ["range", "uniform"]),
        (["org.apache.kafka.coordinator.group.assignor.UniformAssignor"], ["uniform"]),
    ],
)
def test_assignors_come_in_the_order_of_the_list_and_under_their_names(
    listed: list[str], names: list[str]
) -> None:
    found = plugins.consumer_assignors(listed)
    assert list(found) == names
    assert {name: type(assignor) for name, assignor in found.items()} == {
        name: each for name, each in (("uniform", UniformAssignor), ("range", RangeAssignor)) if name in names
    }


def test_an_assignor_of_a_plugin(plugin_directory: Path) -> None:
    install(
        plugin_directory,
        "goodassignor",
        group=plugins.ASSIGNOR,
        engine="mine",
        module="FACTORY = 'made by the plugin'\n",
    )
    assert plugins.consumer_assignors(["mine", "uniform"])["mine"] == "made by the plugin"


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (["uniform", "zebra"], "unknown assignor 'zebra': installed are range, uniform"),
        (
            ["uniform", "org.apache.kafka.coordinator.group.assignor.UniformAssignor"],
            "group.consumer.assignors names 'uniform' twice",
        ),
        ([], "group.consumer.assignors is empty: name at least one"),
        (
            ["org.apache.kafka.coordinator.group.assignor.SimpleAssignor"],
            "unknown assignor 'org.apache.kafka",
        ),
    ],
)
def test_lists_of_assignors_that_are_refused(listed: list[str], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^{re.escape(message)}"):
        plugins.consumer_assignors(listed)


def test_two_plugins_of_one_name_are_refused(plugin_directory: Path) -> None:
    for name in ("firstplugin", "secondplugin"):
        install(plugin_directory, name, engine="twice", module="FACTORY = 1\n")
    with pytest.raises(OperatorError, match=r"firstplugin 1\.2 and by secondplugin 1\.2"):
        plugins.log_store_factory("twice")


def test_nothing_is_imported_before_it_is_chosen() -> None:
    program = (
        "import sys; from kbroker import plugins; plugins.names(plugins.LOG_STORE); "
        "plugins.log_store_factory('memory');"
        "print([name for name in ('lmdb', 'rocksdict', 'mmap_ninja') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
