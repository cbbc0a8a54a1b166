"""Every installed persister keeps the promises of the Persister SPI, on every engine that it may
use."""

from __future__ import annotations

from kbroker import plugins
from kbroker.testing.parking_contract import ParkingContract
from kbroker.testing.persister_contract import PersisterAnswers, PersisterContract
from kbroker.testing.reasons_contract import ReasonsContract


class TestNoop(PersisterAnswers):
    """It answers, and keeps nothing."""

    name = "noop"


for _engine in plugins.names(plugins.STATE_STORE):
    _storage = "memory" if _engine == "memory" else "segment"
    _name = f"TestDefaultOn{_engine.title()}"
    _settings = {"state_storage": _engine, "storage": _storage, "__module__": __name__}
    globals()[_name] = type(_name, (PersisterContract, ParkingContract, ReasonsContract), _settings)

for _engine in plugins.names(plugins.LOG_STORE):
    _state = "memory" if _engine == "memory" else "segment"
    _name = f"TestControlRecordsOn{_engine.title()}"
    _settings = {
        "name": "control-records",
        "state_storage": _state,
        "storage": _engine,
        "__module__": __name__,
    }
    globals()[_name] = type(_name, (PersisterContract, ParkingContract, ReasonsContract), _settings)
