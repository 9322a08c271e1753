"""The settings of the control service: its own section, and those of the application that it shows."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from broker.settings import Address, CertificateFile, Duration, Section, SettingsError, duration_between
from broker.times import parse_duration
from joiner.runtime.settings import JoinerSettings


class ControlSettings(Section):
    """``[control]``: the control service."""

    listen: Address = "127.0.0.1:8090"
    """The address of the service, as a port or as host:port: default port 8090 on the loopback interface. On any other
    interface, it needs ``users_file``, and either ``tls_certificate_file`` or ``behind_tls_proxy``."""

    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{1,253}$")]] = Field(default_factory=list, max_length=100)
    """The names under which browsers may reach the service, besides those of the loopback interface: default none.
    Requests for other names are refused, so that no page of another site can reach it under a name of its own."""

    users_file: Path | None = None
    """The file with the users, which `lsb-control add` writes: default none. Then the service prints a token when it
    starts, which is valid as long as it runs."""

    tls_certificate_file: CertificateFile = None
    """A PEM file with the certificate of the service and those of its issuers: default none (no TLS)."""

    tls_key_file: Path | None = None
    """A PEM file with the private key of the certificate: default none, which means that the certificate's file
    contains it."""

    behind_tls_proxy: bool = False
    """Whether a proxy in front of the service ends TLS: default no. If so, cookies are sent over TLS only."""

    session_life: Annotated[Duration, duration_between("1min", "7d")] = parse_duration("12h")
    """After this time, users must log in again: 1 min to 7 d, default 12 h."""


class Settings(JoinerSettings):
    """All settings of the control service: those of the application, and its own."""

    control: ControlSettings = ControlSettings()


def check_access(settings: ControlSettings) -> None:
    """Raise `SettingsError` if the service would be open to a network without users or without TLS."""
    host = settings.listen.rpartition(":")[0].strip("[]")
    if is_loopback(host):
        return
    faults = []
    if settings.users_file is None:
        faults.append("control.users_file is missing: add users with `lsb-control add`")
    if settings.tls_certificate_file is None and not settings.behind_tls_proxy:
        faults.append(
            "passwords would be sent in clear: set control.tls_certificate_file, or control.behind_tls_proxy if a "
            "proxy in front of the service ends TLS"
        )
    if not settings.hosts:
        faults.append("control.hosts is empty: list the names under which browsers reach the service")
    if faults:
        raise SettingsError(
            "\n".join(f"control.listen is not on the loopback interface, and {fault}" for fault in faults)
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_applications(applications: Sequence[Settings]) -> None:
    """Raise `SettingsError` if two settings files have applications of the same name."""
    names = [settings.application.name for settings in applications]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(
            f"several settings files have the application {', '.join(twice)}: give each a name of its own"
        )
