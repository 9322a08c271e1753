"""The other servers of the stack that all tests of a run share, a PostgreSQL, a browser, and a control service.

Each server starts when the first test requests it. If a server cannot be started, the tests that need it fail and
report the reason; nothing is skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from broker.stack import LocalStack
from tests.integration.services import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.integration.control_service import ControlService
    from tests.integration.joiner_application import Application
    from tests.integration.postgresql_server import PostgresqlServer


class MqttAddress(NamedTuple):
    """The address of the MQTT broker."""

    host: str
    port: int


class InfluxdbAccess(NamedTuple):
    """The address and credentials of a database. ``bucket`` is ``<database>/autogen``."""

    url: str
    token: str
    org: str
    bucket: str


@pytest.fixture(scope="session")
def mqtt(stack: LocalStack) -> MqttAddress:
    """The address of a running MQTT broker. It is shared: use unique topic names."""
    stack.up([stack.mqtt])
    return MqttAddress("127.0.0.1", stack.mqtt.port)


@pytest.fixture(scope="session")
def new_database(stack: LocalStack) -> Callable[[], InfluxdbAccess]:
    """A function that creates a new, empty database at each call, for tests that need several."""
    stack.up([stack.influxdb])

    def make() -> InfluxdbAccess:
        name = f"test_{uuid.uuid4().hex[:12]}"

        def is_created() -> bool:
            try:
                stack.influxdb.create_database(name)
            except TimeoutError:  # the machine is busy, and creating it again does no harm
                return False
            return True

        wait_until(is_created, f"the database {name} is created")
        return InfluxdbAccess(stack.influxdb.url, ":", "-", f"{name}/autogen")

    return make


@pytest.fixture
def influxdb(new_database: Callable[[], InfluxdbAccess]) -> InfluxdbAccess:
    """A new, empty database in a running InfluxDB, for this test only."""
    return new_database()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A running PostgreSQL. Tests that stop it must start it again."""
    # Most tests need none.
    from tests.integration.postgresql_server import postgresql_server  # noqa: PLC0415 - see above

    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, for tests of the pages of the control service."""
    # Most tests need none, and it takes a while to import.
    from tests.integration.browser import launched_browser  # noqa: PLC0415 - see above

    yield from launched_browser()


@pytest.fixture
def control(app: Application, tmp_path: Path) -> Iterator[ControlService]:
    """A control service that shows the application of the test and has users of each role."""
    from tests.integration.browser import service_with_users  # noqa: PLC0415 - as above

    yield from service_with_users(app, tmp_path)
