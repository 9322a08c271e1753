"""Asks a schema registry for schemas, over HTTP.

The client of confluent-kafka is not used: it limits neither how long an answer takes as a whole nor how large it is,
and keeps all schemas that it has fetched. Proxies that the environment names (``HTTPS_PROXY``) are not used either, as
little as for the other servers.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from base64 import b64encode
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from broker.settings import SettingsError
from joiner.mapping.documents import is_deeper
from joiner.mapping.framing import AVRO_KIND, PROTOBUF_KIND, SCHEMA_LENGTH_MAX, RegisteredSchema
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.clock import Clock

ANSWER_BYTES_MAX: Final = 2 * SCHEMA_LENGTH_MAX
"""The maximum size of an answer. In JSON, a schema is longer, because its quotation marks are escaped."""

REFERENCES_MAX: Final = 100
"""How many schemas a schema can refer to, including those that they refer to."""

_ID_MAX: Final = 2**31 - 1
"""Ids are int32. To the question for a larger one, registries answer that there is no such page."""

_SCHEMA_NOT_FOUND: Final = 40_403
_NESTING_MAX: Final = 50
_KIND_LENGTH_MAX: Final = 40
_REASON_LENGTH_MAX: Final = 300
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


class NoAnswerError(Exception):
    """The registry has not answered with a schema. The message says why."""


class UnreachableError(NoAnswerError):
    """The registry cannot be reached, or does not answer in time, whatever it is asked."""


class _UnknownError(NoAnswerError):
    """The registry does not know what it was asked for."""


class RegistryClient:
    """Fetches schemas from the registry that the settings name."""

    def __init__(self, settings: RegistrySettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    def fetch(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with an id, or None if the registry does not know the id.

        Takes at most ``registry.timeout``, with the schemas that it refers to. Raises `NoAnswerError`.
        """
        if schema_id > _ID_MAX:
            return None
        try:
            with _Connection(self._settings, self._clock) as connection:
                try:
                    whole = connection.get(f"/schemas/ids/{schema_id}")
                except _UnknownError:
                    return None
                return _registered(connection, whole)
        except SettingsError as error:
            raise NoAnswerError(str(error)) from error


def _registered(connection: _Connection, whole: dict[str, Any]) -> RegisteredSchema:
    kind, text = whole.get("schemaType") or "AVRO", _text_of(whole)
    if not isinstance(kind, str):
        message = "its answer has a schemaType that is not a string"
        raise NoAnswerError(message)
    if kind not in {AVRO_KIND, PROTOBUF_KIND}:
        return RegisteredSchema(_shown(kind)[:_KIND_LENGTH_MAX], "")
    texts: dict[str, str] = {}
    _add_references(connection, whole, texts, set())
    if len(text) + sum(map(len, texts.values())) > SCHEMA_LENGTH_MAX:
        # As much as is needed to see that it is too long.
        return RegisteredSchema(kind, (text + "".join(texts.values()))[: SCHEMA_LENGTH_MAX + 1])
    return RegisteredSchema(kind, text, tuple(texts.values()), tuple(texts))


def _add_references(connection: _Connection, schema: dict[str, Any], found: dict[str, str], seen: set[str]) -> None:
    """Add the schemas that a schema refers to by their names, each after those that it refers to itself.

    Of several with the same name, the first counts, as in Confluent's own clients.
    """
    references = schema.get("references") or []
    if not isinstance(references, list):
        message = "its answer has references that are not a list"
        raise NoAnswerError(message)
    for reference in references:
        name, path = _reference(reference)
        if name in seen:
            continue
        seen.add(name)
        if len(seen) > REFERENCES_MAX:
            message = f"the schema refers to more than {REFERENCES_MAX} others"
            raise NoAnswerError(message)
        other = connection.get(path)
        text = _text_of(other)
        _add_references(connection, other, found, seen)
        # What is longer than all together may be is too long in any case.
        found[name] = text[: SCHEMA_LENGTH_MAX + 1]


def _reference(reference: Any) -> tuple[str, str]:
    """Return the name of a reference, and the path of what it refers to."""
    given = reference if isinstance(reference, dict) else {}
    name, subject, version = given.get("name"), given.get("subject"), given.get("version")
    if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
        message = "its answer has a reference without a name, a subject or a version"
        raise NoAnswerError(message)
    # A schema that others refer to may have been deleted, which only hides it.
    return name, f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{version}?deleted=true"


def _text_of(answer: dict[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str) or not text:
        message = "its answer has no schema"
        raise NoAnswerError(message)
    return text


def _shown(text: str) -> str:
    """Return the beginning of a text from the registry so that it can be part of a message.

    JSON can contain lone surrogates, which UTF-8 cannot: they are not printable, as little as control characters.
    """
    return "".join(one if one.isprintable() else "?" for one in text[:_REASON_LENGTH_MAX])


class _Connection:
    """A connection for one fetch, which ends at a deadline, whatever the registry is sending then."""

    def __init__(self, settings: RegistrySettings, clock: Clock) -> None:
        """Raises `SettingsError` if the password cannot be read."""
        self._url, self._clock = urlsplit(settings.url or ""), clock
        self._deadline_s = clock.monotonic_s() + settings.timeout / 1e9
        self._timeout = f"it does not answer within {settings.timeout / 1e9:g} s"
        self._headers = {"Accept": _ACCEPT}
        if settings.user is not None:
            signed = b64encode(f"{settings.user}:{settings.secret() or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {signed}"
        self._ca_file = settings.ca_file
        self._http: HTTPConnection | None = None
        self._trust: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(settings.timeout / 1e9, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._http is not None:
            self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer to a request. Raises `NoAnswerError`."""
        try:
            status, content = self._exchange(path)
        except ssl.SSLCertVerificationError as error:
            message = (
                f"its certificate is not accepted ({error.verify_message}): registry.ca_file must contain the "
                "certificate of the authority that has issued it, and registry.url a host name that it is for"
            )
            raise UnreachableError(message) from error
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: the host has no valid name
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
            raise UnreachableError(self._timeout if self._is_expired() else reason) from error
        if self._is_expired():  # the answer may be incomplete
            raise UnreachableError(self._timeout)
        if len(content) > ANSWER_BYTES_MAX:
            message = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
            raise NoAnswerError(message)
        answer = _parsed(content)
        if status == HTTPStatus.NOT_FOUND and answer is not None and answer.get("error_code") == _SCHEMA_NOT_FOUND:
            message = f"it does not know {path}"
            raise _UnknownError(message)
        if status != HTTPStatus.OK:
            reason = _shown(str((answer or {}).get("message", "without a reason")))
            message = f"it answers with status {status}: {reason}"[:_REASON_LENGTH_MAX]
            raise NoAnswerError(message)
        if answer is None:
            message = "its answer is not a JSON object"
            raise NoAnswerError(message)
        return answer

    def _exchange(self, path: str) -> tuple[int, bytes]:
        """Return the status and the content of the answer, or the beginning of one that is too large."""
        http = self._connected()
        http.request("GET", self._url.path + path, headers=self._headers)
        with http.getresponse() as response:
            return response.status, response.read(ANSWER_BYTES_MAX + 1)

    def _connected(self) -> HTTPConnection:
        if self._http is None:
            # The port is explicit, because the last part of an IPv6 address would be taken for one.
            host, port = self._url.hostname or "", self._url.port
            if self._url.scheme == "https":
                self._trust = ssl.create_default_context(cafile=self._ca_file)
                self._http = HTTPSConnection(host, port or HTTPS_PORT, context=self._trust)
            else:
                self._http = HTTPConnection(host, port or HTTP_PORT)
        if self._http.sock is None:  # also after a registry has closed the connection
            self._socket = self._reach(self._http.host, self._http.port)
            if self._trust is not None:
                self._socket = self._trust.wrap_socket(self._socket, server_hostname=self._http.host)
            self._http.sock = self._socket
            self._left_s()
        return self._http

    def _reach(self, host: str, port: int) -> socket.socket:
        """Connect to one of a host's addresses.

        The client of the standard library would wait for each of them as long as for all together. Here, one that does
        not answer leaves as much time to each of the others.
        """
        problem = OSError("its host has no address")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found):
            reached = None
            try:
                # Fails if the system has no IPv6, for example.
                reached = socket.socket(family, kind, protocol)
                reached.settimeout(self._left_s() / (len(found) - number))
                reached.connect(address)
                reached.settimeout(self._left_s())
            except OSError as error:
                if reached is not None:
                    reached.close()
                problem = error
            else:
                return reached
        raise problem

    def _left_s(self) -> float:
        """Return how much time is left. Raises TimeoutError if there is none."""
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _is_expired(self) -> bool:
        return self._clock.monotonic_s() >= self._deadline_s

    def _expire(self) -> None:
        """End the connection: a timeout of its socket would begin again with each byte."""
        if self._socket is not None:
            with suppress(OSError):
                # Not that of a socket with TLS, which would change it while another thread uses it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _parsed(content: bytes) -> dict[str, Any] | None:
    """Return an answer, or None if it is not an object in JSON."""
    # Checked before: the parser's own limit depends on the caller's stack.
    if is_deeper(content, _NESTING_MAX):
        return None
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
