"""Defines the settings that services share, and loads each service's settings.

All services read one TOML file (``lsb.toml``); environment variables ``LSB_<SECTION>__<FIELD>`` override it. Before
doing anything else, a service validates the sections it uses and reports all errors together. Secrets come from the
environment or from a file named in the settings, never from the command line.

Validating a section is pure: the outcome does not depend on the machine. A service checks whether it can use the files
named in its settings only when it loads the settings at startup.
"""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from broker.former_names import with_present_names
from broker.partitioner import PARTITIONER
from broker.settings_errors import error_line, lacking_extras, no_section, remedy_of, unknown_variables
from broker.times import parse_duration

DEFAULT_FILE: Final = Path("lsb.toml")
SECTIONS: Final = frozenset(
    {
        *("kafka", "mqtt", "influxdb", "postgresql", "topics", "events", "metrics", "connector", "application"),
        *("delta", "scaling", "spark", "join", "align", "stream", "registry", "db_connector", "control"),
    }
)
"""The names of all sections that a settings file may contain. Any other section is an error."""

TOPIC_BYTES_MAX: Final = 65_535
"""The maximum length of an MQTT topic in bytes."""
TOPIC_NAME_LENGTH_MAX: Final = 200
"""Kafka's own limit is 249 characters; the difference leaves room for suffixes."""
PORT_MAX: Final = 65_535
SECRET_BYTES_MAX: Final = 65_535
"""The maximum length of a secret in bytes, which is MQTT's limit for passwords."""
_RECONNECT_MAX_MS: Final = 1_000
"""The longest time between two attempts to connect, instead of librdkafka's 10 s: the time doubles with each attempt,
and is reset only after a time without attempts that is as long, so that short interruptions add up to long ones."""

_FILE_NEEDED: Final = "specify a text file that this user can read, with the secret on its first line"


class SettingsError(Exception):
    """Raised if settings cannot be used. The message lists all errors, one per line."""


def read_secret(file: Path) -> str:
    """Return the secret on the first line of a file, without leading and trailing white space.

    Raises `SettingsError` if the file cannot be read, or if its first line is empty, is longer than `SECRET_BYTES_MAX`
    or is not UTF-8.
    """
    try:
        _check_regular(file)
        with file.open("rb") as opened:
            line = opened.readline(SECRET_BYTES_MAX + 1)
        # An overlong line may have been cut in the middle of a character.
        secret = line.decode(errors="ignore" if len(line) > SECRET_BYTES_MAX else "strict").strip()
    except OSError as error:
        raise SettingsError(f"{_unreadable('secret file', file, error)}; {_FILE_NEEDED}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the first line of the secret file {file} is not UTF-8; {_FILE_NEEDED}") from error
    if not secret or len(line) > SECRET_BYTES_MAX:
        fault = "empty" if not secret else f"longer than {SECRET_BYTES_MAX} bytes"
        raise SettingsError(f"the first line of the secret file {file} is {fault}; {_FILE_NEEDED}")
    return secret


def _read_token(file: Path) -> None:
    if not _fits_a_header(read_secret(file)):
        raise SettingsError(f"the first line of the secret file {file} {_NOT_SENT}")


_NOT_SENT: Final = "contains characters that are not allowed in an HTTP header: use only printable Latin-1 characters"


def _fits_a_header(secret: str) -> bool:
    return re.fullmatch(r"[ -~\xa1-\xff]*", secret) is not None


def _load_certificates(file: Path) -> None:
    try:
        _check_regular(file)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError as error:
        raise SettingsError(f"the file {file} contains no usable certificates; specify a PEM file") from error
    except OSError as error:
        raise SettingsError(f"{_unreadable('file', file, error)}; specify a readable PEM file") from error


def _check_regular(file: Path) -> None:
    """Raise OSError if the path exists but is not a regular file. Reading a pipe, for example, could block forever."""
    if "\0" in str(file) or (file.exists() and not file.is_file()):
        raise OSError(0, "it is not a regular file")


def _unreadable(what: str, file: Path, error: OSError) -> str:
    place = "" if file.is_absolute() else f" (looked for in {Path.cwd()})"
    return f"the {what} {file}{place} cannot be read: {error.strerror}"


@dataclass(frozen=True, slots=True)
class _Read:
    """Marks a setting that names a file. ``attempt`` raises `SettingsError` if a service cannot use the file."""

    attempt: Callable[[Path], object]


SecretFile = Annotated[Path | None, _Read(read_secret)]
"""A file with a secret on its first line."""

TokenFile = Annotated[Path | None, _Read(_read_token)]
"""A file whose first line is a secret that will be sent in an HTTP header."""

CertificateFile = Annotated[Path | None, _Read(_load_certificates)]
"""A PEM file with the certificates to trust."""

Duration = Annotated[int, BeforeValidator(parse_duration)]
"""A duration as int64 nanoseconds. In the settings it is written with a unit: ``"250ms"``, ``"2s"``, ``"1d"``."""


def duration_between(shortest: str, longest: str) -> AfterValidator:
    """Return a validator that accepts durations from ``shortest`` to ``longest`` (such as ``"1s"``), inclusive."""
    low_ns, high_ns = parse_duration(shortest), parse_duration(longest)

    def check(duration_ns: int) -> int:
        if not low_ns <= duration_ns <= high_ns:
            raise ValueError(f"must be from {shortest} to {longest}")
        return duration_ns

    return AfterValidator(check)


def plain_name(length_max: int, *, may_be_empty: bool = False) -> AfterValidator:
    """Return a validator for a name that becomes part of topic, group, instance and folder names, and of ids."""

    def check(name: str) -> str:
        is_omitted = may_be_empty and not name
        if not is_omitted and not re.fullmatch(rf"[a-zA-Z0-9][a-zA-Z0-9._-]{{0,{length_max - 1}}}", name):
            raise ValueError(
                f"must be 1 to {length_max} characters from A-Z, a-z, 0-9, '.', '_' and '-', and must begin with a "
                "letter or digit"
            )
        return name

    return AfterValidator(check)


def _topic_name(name: str) -> str:
    if not re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}", name) or name in {".", ".."}:
        raise ValueError(
            f"must be 1 to {TOPIC_NAME_LENGTH_MAX} characters from A-Z, a-z, 0-9, '.', '_' and '-', and must not be "
            "'.' or '..'"
        )
    return name


TopicName = Annotated[str, AfterValidator(_topic_name)]
"""A valid Kafka topic name, short enough to leave room for a suffix."""


def _token(secret: SecretStr) -> SecretStr:
    if not _fits_a_header(secret.get_secret_value()):
        raise ValueError(_NOT_SENT)
    return secret


def topic_filter(text: str) -> str:
    """Return an MQTT topic filter, ``$share/NAME/FILTER`` or ``$queue/FILTER``. Raises ValueError if it is none."""
    levels = text.split("/")
    is_cut = re.match(r"\$(share(?![^/])(?!/[^/+#]+/.)|queue(?![^/])(?!/.))", text, re.DOTALL)
    misplaced = any(len(level) > 1 and set("+#") & set(level) for level in levels) or "#" in levels[:-1]
    # Python turns non-UTF-8 bytes in an environment variable into lone surrogates.
    is_not_text = not text or re.search("[\0\ud800-\udfff]", text)
    if is_not_text or misplaced or is_cut or len(text.encode()) > TOPIC_BYTES_MAX:
        raise ValueError(
            f"must be an MQTT topic filter: 1 to {TOPIC_BYTES_MAX} bytes of UTF-8 without NUL, + only as an entire "
            "level, # only as the last level, a name and a filter behind $share"
        )
    return text


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[\s\0?#]", text):
        raise ValueError("must be an http:// or https:// URL with a host and, optionally, a port and a path")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user name or password, which would not be sent; set influxdb.token")
    return text


def plain_values(given: object) -> object:
    """Check that a table of settings for another program contains only strings, numbers, true and false."""
    if isinstance(given, dict):
        wrong = [repr(name) for name, value in given.items() if not isinstance(value, str | int | float)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} must be a string, a number, true or false")
    return given


class Section(BaseModel):
    """Base class for sections of the settings. Unknown fields are errors. Values cannot change once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    renamed: ClassVar[Mapping[str, str | None]] = {}
    """Maps setting names from the previous release to current names, both as ``section.field``, or to None if the
    setting has been removed. Old names are accepted with a warning."""

    @model_validator(mode="before")
    @classmethod
    def _accept_former_names(cls, given: object) -> object:
        return with_present_names(given, cls.renamed) if isinstance(given, dict) else given


class KafkaSettings(Section):
    """The connection to Kafka. ``client`` is passed to librdkafka unchanged (SASL, TLS, …)."""

    bootstrap_servers: str = Field(default="127.0.0.1:9092", min_length=1)
    client: Annotated[dict[str, str | int | float | bool], BeforeValidator(plain_values)] = Field(default_factory=dict)
    sasl_password_file: SecretFile = None

    def client_config(self, **more: str | float | bool) -> dict[str, Any]:
        """Return librdkafka settings for a client. Those in ``more`` (with ``_`` in place of ``.``) take precedence."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers, **self.client}
        if "reconnect.backoff.ms" not in config:  # must not be greater
            config.setdefault("reconnect.backoff.max.ms", _RECONNECT_MAX_MS)
        if self.sasl_password_file is not None:
            config["sasl.password"] = read_secret(self.sasl_password_file)
        config.update({name.replace("_", "."): value for name, value in more.items()})
        return config

    def producer_config(self, **more: str | float | bool) -> dict[str, Any]:
        """Return the settings of an idempotent librdkafka producer with ``acks=all`` and the shared partitioner."""
        durable: dict[str, str | float | bool] = {"enable_idempotence": True, "acks": "all", "partitioner": PARTITIONER}
        return self.client_config(**{**durable, **more})


class MqttSettings(Section):
    """The connection to the MQTT broker, and the topic filter for events."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=1883, ge=1, le=PORT_MAX)
    topic: Annotated[str, AfterValidator(topic_filter)] = "machine/states"
    username: str | None = None
    password: SecretStr | None = None
    password_file: SecretFile = None
    tls_ca_file: CertificateFile = None

    def secret(self) -> str | None:
        """Return the password, or None if none is set. A password file takes precedence over ``password``."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        return self.password.get_secret_value() if self.password else None


class InfluxdbSettings(Section):
    """The connection to InfluxDB 2.x, or to 1.8 with ``org = "-"`` and ``bucket = "<database>/<retention policy>"``."""

    url: Annotated[str, AfterValidator(_http_url)] = "http://127.0.0.1:8086"
    org: str = "-"
    bucket: str = "lsb/autogen"
    token: Annotated[SecretStr, AfterValidator(_token)] | None = None
    token_file: TokenFile = None
    tls_ca_file: CertificateFile = None

    def secret(self) -> str:
        """Return the token, or ``:`` (no user name, no password) if none is set. A token file takes precedence."""
        if self.token_file is not None:
            return read_secret(self.token_file)
        return self.token.get_secret_value() if self.token else ":"


class TopicSettings(Section):
    """The topics of the pipeline. Each has ``partitions`` partitions; there is one unit per partition number."""

    data: TopicName = "machine.data"
    out: TopicName = "machine.out"
    late: TopicName = "machine.late"
    rejected: TopicName = "machine.rejected"
    unmatched: TopicName = "machine.unmatched"
    data_format: Literal["json", "arrow"] = "json"
    partitions: int = Field(default=5, ge=1, le=1000)
    replication_factor: int = Field(default=1, ge=1, le=10)
    retention: Duration = parse_duration("7d")

    @property
    def has_rows(self) -> bool:
        """Whether a message in the data topics can hold many records. If so, a record's position includes its row."""
        return self.data_format == "arrow"


class EventSettings(Section):
    """The unit of times given as numbers, and the maximum size of an event."""

    time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    event_bytes_max: int = Field(default=256 * 1024, ge=1024, le=16 * 1024 * 1024)


def _address(given: object) -> str:
    host, _, port = str(given).rpartition(":")
    # If only a port is given, it may be a string (from the environment) or a number (from the file).
    known = re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*", host) and re.fullmatch(r"\d{1,5}", port, re.ASCII)
    if not known or int(port) > PORT_MAX:
        raise ValueError("must be a port or host:port, with IPv6 addresses in brackets; port 0 means any free port")
    return f"{host or '127.0.0.1'}:{int(port)}"


Address = Annotated[str, BeforeValidator(_address)]
"""An address to listen on, written as a port or as ``host:port``. The host defaults to the loopback interface."""


class MetricsSettings(Section):
    """Metrics and health over HTTP. There is no default port, because each process on a machine needs its own."""

    listen: Address | None = None
    stalled_after: Annotated[Duration, duration_between("1s", "1h")] = parse_duration("60s")


class ServiceSettings(BaseSettings):
    """Base class for a service's settings. Each field is a section. Sections of other services are ignored."""

    model_config = SettingsConfigDict(
        env_prefix="LSB_", env_nested_delimiter="__", extra="ignore", frozen=True, env_ignore_empty=True
    )

    @classmethod
    def further_errors(cls, given: Mapping[str, Any], *, parts_are_right: bool) -> list[str]:  # noqa: ARG003 - for overrides
        """Return additional errors in settings that failed validation, so that all errors are reported at once.

        ``given``: the values merged from all sources, of any type. ``parts_are_right``: whether each section is
        valid on its own.
        """
        return []

    def needs_extras(self) -> dict[str, str] | None:
        """Return the extras that settings require, each with the name of such a setting, or None if there are none."""


Service = TypeVar("Service", bound=ServiceSettings)


def load_settings(model: type[Service], file: Path | None = None) -> Service:
    """Load the settings of a service from ``file`` (default: ``lsb.toml`` if it exists) and the environment.

    Raises `SettingsError`, which lists all errors.
    """
    if file is not None and not file.is_file():
        raise SettingsError(f"the settings file {file} does not exist; use --config to specify an existing file")
    path = file or DEFAULT_FILE
    merged: dict[str, Any] = {}
    errors = (_unknown_sections(path) if path.is_file() else []) + unknown_variables(SECTIONS)

    class FromFile(model):  # type: ignore[misc, valid-type] # the model is known only here
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - replaced by _Environment
            **_others: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls, toml_file=path)

        @model_validator(mode="before")
        @classmethod
        def _check_files(cls, given: dict[str, Any]) -> dict[str, Any]:
            # This runs after the file and the environment are merged, but before the values are validated.
            merged.update(given)
            errors.extend(_unusable_files(model, given, path))
            return given

    settings = None
    try:
        settings = FromFile()
    except ValidationError as error:
        errors += [error_line(found, path) for found in error.errors()]
        parts_are_right = any(not found["loc"] for found in error.errors())
        errors += [f"{path}: {one}" for one in model.further_errors(merged, parts_are_right=parts_are_right)]
    errors += lacking_extras(path, settings.needs_extras() if settings is not None else None)
    if errors or settings is None:
        raise SettingsError("\n".join(errors))
    return model.model_construct(**{name: getattr(settings, name) for name in model.model_fields})


class _Environment(EnvSettingsSource):
    """Reads environment variables. Keeps text that should be JSON but is not, so that validation reports the error."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            decoded = super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            return value
        return value if decoded is None else decoded


def _unknown_sections(path: Path) -> list[str]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:  # invalid TOML or UTF-8, or thousands of digits
        message = f"{path}: cannot be read as TOML: {error}"
        raise SettingsError(message) from error
    return [f"{path}: {no_section(name, SECTIONS)}" for name in content if name not in SECTIONS]


def _unusable_files(model: type[ServiceSettings], given: dict[str, Any], path: Path) -> list[str]:
    """Check the files named in the settings, and return the errors. Skip values that are not paths."""
    errors = []
    for section, section_field in model.model_fields.items():
        values, kind = given.get(section), section_field.annotation
        if not isinstance(values, dict) or not isinstance(kind, type) or not issubclass(kind, Section):
            continue
        for name, field in kind.model_fields.items():
            for check in field.metadata:
                if isinstance(check, _Read) and isinstance(values.get(name), str):
                    try:
                        check.attempt(Path(values[name]))
                    except SettingsError as error:
                        errors.append(f"{path}: {section}.{name}: {error}; {remedy_of([section, name])}")
    return errors
