"""Kafka, an MQTT broker and InfluxDB as in production: TLS with a private CA, and authentication at each server.

Kafka also keeps its plain listener on the loopback interface, through which the test creates the user.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from broker.stack import LocalStack, ephemeral_stack
from broker.stack.ports import choose_port
from tests.certificates import make_certificates
from tests.integration.services import wait_until

USER: Final = "lsb"
PASSWORD: Final = "right-and-long-enough"  # noqa: S105 - for servers that run during one test
"""InfluxDB 1.8 cannot parse a token with a space."""


@dataclass(frozen=True)
class Secure:
    """The addresses of the servers, and the certificate of their CA."""

    folder: Path
    authority: Path
    kafka: str
    mqtt_port: int
    influxdb: str

    def settings(self, *, kafka: str = PASSWORD, mqtt: str = PASSWORD, token: str = f"{USER}:{PASSWORD}") -> Path:
        """Return a settings file with these passwords, each in a separate file."""
        for name, secret in (("kafka", kafka), ("mqtt", mqtt), ("token", token)):
            (self.folder / name).write_text(secret + "\n")
        path = self.folder / "lsb.toml"
        path.write_text(
            f"""
[kafka]
bootstrap_servers = "{self.kafka}"
sasl_password_file = "{self.folder}/kafka"

[kafka.client]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "{USER}"
"ssl.ca.location" = "{self.authority}"

[mqtt]
host = "localhost"
port = {self.mqtt_port}
username = "{USER}"
password_file = "{self.folder}/mqtt"
tls_ca_file = "{self.authority}"

[influxdb]
url = "{self.influxdb}"
bucket = "lsb/autogen"
token_file = "{self.folder}/token"
tls_ca_file = "{self.authority}"

[topics]
partitions = 2

[application]
name = "secure"

[[join]]
name = "power"
left = "actSpeed_C11"
right = "vaTorque_C11"
function = "product"
output = "mechPower_C11"
"""
        )
        return path


@contextmanager
def secure_servers(folder: Path) -> Iterator[Secure]:
    """Run all three servers for the duration of the block."""
    authority, certificate, key = make_certificates(folder)
    with ExitStack() as running:
        stack = running.enter_context(ephemeral_stack(say=print))
        kafka = _start_kafka(stack, folder, certificate, key)
        mqtt_port = choose_port(None)
        running.enter_context(_process(_mqtt_command(stack, folder, certificate, key, mqtt_port), folder / "mqtt.log"))
        influxdb_port = choose_port(None)
        address = f"https://localhost:{influxdb_port}"
        environment = _influxdb_environment(folder, certificate, key, influxdb_port)
        influxd = [str(stack.influxdb._parts.influxd())]  # noqa: SLF001 - the binary of the stack
        running.enter_context(_process(influxd, folder / "influxdb.log", environment))
        _make_database(address, authority)
        yield Secure(folder, authority, kafka, mqtt_port, address)


def _start_kafka(stack: LocalStack, folder: Path, certificate: Path, key: Path) -> str:
    port = choose_port(None)
    both = folder / "kafka.pem"
    both.write_text(key.read_text() + certificate.read_text())
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    stack.kafka.more = {
        "listeners": f"PLAINTEXT://127.0.0.1:${{port}},CONTROLLER://127.0.0.1:${{controller_port}},SECURE://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:${{port}},SECURE://localhost:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
    }
    stack.up([stack.kafka])
    admin = AdminClient({"bootstrap.servers": stack.kafka.address})
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(USER, kind, PASSWORD.encode())
    for answer in admin.alter_user_scram_credentials([wanted]).values():
        answer.result()
    return f"localhost:{port}"


def _mqtt_command(stack: LocalStack, folder: Path, certificate: Path, key: Path, port: int) -> list[str]:
    home, store = folder / "broker", folder / "broker.p12"
    for part in ("conf", "data"):
        (home / part).mkdir(parents=True)
    keep = f"pkcs12 -export -in {certificate} -inkey {key} -out {store} -passout pass:{PASSWORD}".split()
    subprocess.run(["openssl", *keep], check=True, capture_output=True)  # noqa: S607 - its path varies
    (home / "conf/logins.properties").write_text(f"{USER}={PASSWORD}\n")
    opened = (
        f"<path>{store}</path><password>{PASSWORD}</password><private-key-password>{PASSWORD}</private-key-password>"
    )
    (home / "conf/config.xml").write_text(
        f"<hivemq><listeners><tls-tcp-listener><port>{port}</port><bind-address>127.0.0.1</bind-address>"
        f"<tls><keystore><path>{store}</path>{opened}</keystore></tls></tls-tcp-listener></listeners></hivemq>"
    )
    stack.mqtt.fetch()
    return stack.mqtt.command(home)


def _influxdb_environment(folder: Path, certificate: Path, key: Path, port: int) -> dict[str, str]:
    places = {f"INFLUXDB_{name}": f"{folder}/influxdb/{name}" for name in ("META_DIR", "DATA_DIR", "DATA_WAL_DIR")}
    return places | {
        "INFLUXDB_BIND_ADDRESS": f"127.0.0.1:{choose_port(None)}",
        "INFLUXDB_HTTP_BIND_ADDRESS": f"127.0.0.1:{port}",
        "INFLUXDB_HTTP_FLUX_ENABLED": "true",
        "INFLUXDB_HTTP_AUTH_ENABLED": "true",
        "INFLUXDB_HTTP_HTTPS_ENABLED": "true",
        "INFLUXDB_HTTP_HTTPS_CERTIFICATE": str(certificate),
        "INFLUXDB_HTTP_HTTPS_PRIVATE_KEY": str(key),
        "INFLUXDB_MONITOR_STORE_ENABLED": "false",
        "INFLUXDB_REPORTING_DISABLED": "true",
    }


def _make_database(address: str, authority: Path) -> None:
    """Create the user and the database. Only the first user can be created without credentials."""
    context = ssl.create_default_context(cafile=str(authority))

    def ask(statement: str, **login: str) -> bool:
        url, query = f"{address}/query?{urllib.parse.urlencode(login)}", urllib.parse.urlencode({"q": statement})
        with suppress(OSError), urllib.request.urlopen(url, query.encode(), timeout=10, context=context) as answer:
            return bool(answer.status == 200)
        return False

    make_user = f"CREATE USER {USER} WITH PASSWORD '{PASSWORD}' WITH ALL PRIVILEGES"
    wait_until(lambda: ask(make_user), "the database has its first user")
    assert ask("CREATE DATABASE lsb", u=USER, p=PASSWORD)


@contextmanager
def _process(command: list[str], log: Path, more: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | (more or {}))
    try:
        yield
    finally:
        running.terminate()
        running.wait(30)
