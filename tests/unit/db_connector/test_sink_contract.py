"""Does the stand-in for InfluxDB pass the contract of all sinks?"""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

from typing import Any

import pytest

from db_connector.sinks.sink import MisconfiguredError
from tests.unit.db_connector.sink_contract import ReplacingSinkContract, Stored, identity_of
from tests.unit.db_connector.test_contract import FakeInflux


class Stand:
    def __init__(self) -> None:
        self.sink, self.missing = FakeInflux(), FakeInflux()
        self.missing.failures = [MisconfiguredError("database not found")] * 2

    def stored(self) -> Stored:
        points: Any = self.sink.stored
        return {identity_of(point): fields for point, fields in points.items()}


class TestTheStandIn(ReplacingSinkContract):
    @pytest.fixture
    def sink_stand(self) -> Stand:
        return Stand()
