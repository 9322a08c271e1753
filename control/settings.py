"""The settings of the control service: its own section, and those of the application that it shows."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from broker.settings import (
    Address,
    CertificateFile,
    Duration,
    InfluxdbSettings,
    MqttSettings,
    Section,
    SettingsError,
    duration_between,
)
from broker.times import parse_duration
from connector.settings import ConnectorSettings
from control.facts.flow.endpoints import DELTA, POSTGRESQL, STDOUT, Endpoints, Sink, Source
from db_connector.settings import ConnectorSettings as DbConnectorSettings
from db_connector.settings import DeltaSettings, PostgresqlSettings
from joiner.runtime.settings import JoinerSettings


def _network(address: str) -> str:
    try:
        return str(ipaddress.ip_network(address, strict=False))
    except ValueError:
        raise ValueError("must be an IP address or a network such as 10.0.0.0/8") from None


def _host(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            raise ValueError("must be a host name or an address, without a port") from None
    return name


_HostName = Annotated[str, AfterValidator(_host)]


class ControlSettings(Section):
    """``[control]``: the control service."""

    listen: Address = "127.0.0.1:8090"
    """The address of the service, as a port or as host:port: default port 8090 on the loopback interface. On any other
    interface, it needs ``users_file``, ``hosts``, and either ``tls_certificate_file`` or ``proxies``. In a container,
    see ``published_on_loopback``."""

    published_on_loopback: bool = False
    """Whether the service runs in a container whose port is published on the loopback interface of its host and
    nowhere else: default false. In that case, it may listen on any interface of the container without ``hosts`` and
    without TLS. The service cannot verify this: if it is not true, passwords are sent unencrypted."""

    hosts: list[_HostName] = Field(default_factory=list, max_length=100)
    """The host names and addresses at which clients reach the service, without ports, in addition to those of the
    loopback interface: default none. Requests for other names are refused, so that no page of another site can reach
    the service under a name of its own."""

    users_file: Path | None = None
    """The file with the users, which `lsb-control add` writes: default none. Without it, the service creates a token on
    startup that is valid for as long as it runs."""

    tls_certificate_file: CertificateFile = None
    """A PEM file with the certificate of the service and those of its issuers: default none (no TLS)."""

    tls_key_file: Path | None = None
    """A PEM file with the private key of the certificate, without a password: default none, which means that the
    certificate's file contains it."""

    proxies: list[Annotated[str, AfterValidator(_network)]] = Field(default_factory=list, max_length=100)
    """The addresses or networks of proxies that terminate TLS in front of the service: default none. Their headers
    ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted, and requests without TLS are refused. Requires ``hosts``,
    on any interface."""

    session_life: Annotated[Duration, duration_between("1min", "7d")] = parse_duration("12h")
    """After this time, users must log in again: 1 min to 7 d, default 12 h."""


class Settings(JoinerSettings):
    """All settings of the control service: those of the application, and its own.

    The connectors' sections are None if neither the file nor the environment has them. They are only displayed, so the
    secret files that they name are not read.
    """

    control: ControlSettings = ControlSettings()
    mqtt: MqttSettings | None = None
    connector: ConnectorSettings | None = None
    influxdb: InfluxdbSettings | None = None
    postgresql: PostgresqlSettings | None = None
    delta: DeltaSettings | None = None
    db_connector: DbConnectorSettings | None = None

    def endpoints(self) -> Endpoints:
        """Return what may be shown about the connectors. Either of a connector's two sections is enough."""
        mqtt, connector = self.mqtt or MqttSettings(), self.connector or ConnectorSettings()
        influxdb, postgresql = self.influxdb or InfluxdbSettings(), self.postgresql or PostgresqlSettings()
        delta, db_connector = self.delta or DeltaSettings(), self.db_connector or DbConnectorSettings()
        source = Source(f"{_bracketed(mqtt.host)}:{mqtt.port}", mqtt.topic, connector.client_id)
        is_merged = db_connector.merged
        match db_connector.sink:
            case "influxdb":
                place = f"{influxdb.org}/{influxdb.bucket}", db_connector.measurement
                url = urlsplit(influxdb.url)
                # A path may contain a secret.
                sink = Sink(db_connector.group, f"{url.scheme}://{url.netloc}", *place, is_merged=is_merged)
            case "postgresql":
                address = f"{_bracketed(postgresql.host)}:{postgresql.port}"
                place = postgresql.database, postgresql.table
                sink = Sink(db_connector.group, address, *place, POSTGRESQL, is_merged)
            case "delta":
                sink = Sink(db_connector.group, database=delta.path, kind=DELTA, is_merged=is_merged)
            case "stdout":
                sink = Sink(db_connector.group, kind=STDOUT, is_merged=is_merged)
        has_source = self.mqtt is not None or self.connector is not None
        has_sink = any(one is not None for one in (self.influxdb, self.postgresql, self.delta, self.db_connector))
        return Endpoints(source if has_source else None, sink if has_sink else None)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_access(settings: ControlSettings) -> None:
    """Raise `SettingsError` if the service would be open to a network without users or without TLS."""
    faults = []
    if settings.tls_key_file is not None and settings.tls_certificate_file is None:
        faults.append("control.tls_key_file is set, but control.tls_certificate_file is not: set both")
    if settings.proxies and not settings.hosts:
        faults.append("control.hosts is empty: list the names under which browsers reach the proxy")
    if not is_loopback(split_address(settings.listen)[0]):
        where = "control.listen is not on the loopback interface, and"
        if settings.users_file is None:
            faults.append(f"{where} control.users_file is missing: add users with `lsb-control add`")
        has_tls = settings.tls_certificate_file is not None or bool(settings.proxies)
        if not has_tls and not settings.published_on_loopback:
            faults.append(
                f"{where} passwords would be sent in clear text: set control.tls_certificate_file or, if a proxy "
                "terminates TLS, control.proxies; for a container whose port is published on the loopback interface "
                "only, set control.published_on_loopback"
            )
        if not settings.hosts and not settings.published_on_loopback:
            faults.append(f"{where} control.hosts is empty: list the names under which browsers reach the service")
    if faults:
        raise SettingsError("\n".join(dict.fromkeys(faults)))


def split_address(listen: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address to listen on."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_applications(applications: Sequence[Settings]) -> None:
    """Raise `SettingsError` if two settings files have applications with the same name."""
    names = [settings.application.name for settings in applications]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"several settings files have the application {', '.join(twice)}: give each its own name")
