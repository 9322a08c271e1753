"""Gets schemas from a schema registry, for messages that name theirs (see `joiner.mapping.framing`).

The schema of an id never changes, so what is read by it depends on the message alone. A schema that is not available
stops the unit until it is: nothing is guessed. All units of a process share what has been fetched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from joiner.mapping.formats import PROTOBUF
from joiner.mapping.framing import AVRO_KIND, PROTOBUF_KIND, RegisteredSchema, Schemas, SchemaTable, SizedCache
from joiner.mapping.protobuf.compiling import CompilerFailed, compile_schema
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.clock import Clock, SystemClock
from joiner.runtime.kafka.batches.registry_client import NoAnswerError, RegistryClient, UnreachableError
from joiner.runtime.model import UnitStopped

if TYPE_CHECKING:
    from joiner.runtime.settings import JoinerSettings

SCHEMAS_MAX: Final = 1_000
"""How many schemas are kept. The oldest are forgotten."""

CHARACTERS_MAX: Final = 32 * 1024 * 1024
"""The maximum number of characters of all schemas that are kept, or of bytes if they have been compiled."""

UNKNOWN_MAX: Final = 10_000
"""How many ids are kept that the registry does not know."""

_PAUSE_S: Final = 1.0
"""How long a registry that was not reached is not asked again, so that the other units need not wait for it, too."""

_PAUSE_SHARE: Final = 10
"""A schema that could not be compiled is left alone for so many times as long as that took: other units wait meanwhile,
and every unit that needs the schema would try again."""

_log = logging.getLogger(__name__)


class SchemaUnavailable(UnitStopped):
    """A schema is needed that cannot be fetched at present. The unit is claimed again until that succeeds."""


Fetch = Callable[[int], RegisteredSchema | None]
"""Returns the schema with an id, or None if the registry does not know the id. Raises `NoAnswerError`."""

Compile = Callable[[RegisteredSchema], RegisteredSchema]
"""Compiles a schema of Protocol Buffers. Raises `CompilerFailed`."""


class SchemaStore:
    """Fetches schemas when they are needed, and keeps them. Thread-safe."""

    def __init__(self, settings: RegistrySettings, fetch: Fetch, clock: Clock, compiled: Compile | None = None) -> None:
        """``compiled``: None if no stream is of Protocol Buffers, so that their schemas are not needed."""
        self._settings, self._fetch, self._clock, self._compiled = settings, fetch, clock, compiled
        self._known: SizedCache[RegisteredSchema] = SizedCache(CHARACTERS_MAX, SCHEMAS_MAX)
        self._unknown: SizedCache[bool] = SizedCache(UNKNOWN_MAX, UNKNOWN_MAX)
        self._lock = threading.Lock()
        self._not_before_s, self._why = -1.0, ""
        # By id: until when it is not compiled again, and why it could not be compiled.
        self._not_compiled: SizedCache[tuple[float, str]] = SizedCache(SCHEMAS_MAX, SCHEMAS_MAX)

    def get(self, schema_id: int) -> RegisteredSchema | None:
        """See `Schemas`. Raises `SchemaUnavailable` if the schema cannot be known at present."""
        found = self._known.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            found = self._known.get(schema_id)
            if found is None and self._unknown.get(schema_id) is None:
                found = self._ask(schema_id)
        if found is None and self._settings.unknown_schema == "stop":
            raise SchemaUnavailable(
                f"the schema registry {self._settings.url} has no schema with the id {schema_id}, which a message "
                "names: register it, or set registry.unknown_schema to 'reject'; the unit continues by itself once "
                "the registry has the schema"
            )
        return found

    def _ask(self, schema_id: int) -> RegisteredSchema | None:
        now_s = self._clock.monotonic_s()
        if now_s < self._not_before_s:
            raise self._unavailable(schema_id, self._why)
        not_before_s, why = self._not_compiled.get(schema_id) or (now_s, "")
        if now_s < not_before_s:
            raise _not_compiled(schema_id, why)
        try:
            found = self._fetch(schema_id)
        except UnreachableError as error:
            self._not_before_s, self._why = self._clock.monotonic_s() + _PAUSE_S, str(error)
            raise self._unavailable(schema_id, self._why) from error
        except NoAnswerError as error:  # says nothing about other ids
            raise self._unavailable(schema_id, str(error)) from error
        if found is None:
            if self._settings.unknown_schema == "reject":
                self._unknown.put(schema_id, value=True)
            return None
        _log.info("fetched the schema %s from %s", schema_id, self._settings.url)
        found = self._usable(schema_id, found)
        return self._known.put(schema_id, found, _size(found))

    def _usable(self, schema_id: int, found: RegisteredSchema) -> RegisteredSchema:
        """Return a schema as far as it is used."""
        if found.kind == AVRO_KIND:
            return found
        if found.kind != PROTOBUF_KIND or self._compiled is None:
            return RegisteredSchema(found.kind, "")
        begun_s = self._clock.monotonic_s()
        try:
            return self._compiled(found)
        except CompilerFailed as error:
            now_s = self._clock.monotonic_s()
            pause_s = max(_PAUSE_S, _PAUSE_SHARE * (now_s - begun_s))
            self._not_compiled.put(schema_id, (now_s + pause_s, str(error)))
            raise _not_compiled(schema_id, str(error)) from error

    def _unavailable(self, schema_id: int, why: str) -> SchemaUnavailable:
        return SchemaUnavailable(
            f"the schema {schema_id}, which a message names, cannot be fetched from the schema registry "
            f"{self._settings.url}: {why}; the unit continues by itself once it can"
        )


def _not_compiled(schema_id: int, why: str) -> SchemaUnavailable:
    return SchemaUnavailable(
        f"the schema {schema_id}, which a message names, cannot be compiled: {why}; the unit continues by itself once "
        "it can"
    )


def _size(schema: RegisteredSchema) -> int:
    return len(schema.text) + sum(map(len, (*schema.references, *schema.names))) + len(schema.descriptors)


def schemas_of(settings: JoinerSettings) -> Schemas:
    """Return what knows the schemas of an application's messages: the same for all units of a process."""
    has_protobuf = any(stream.format == PROTOBUF for stream in settings.stream)
    return _store(settings.registry, has_protobuf=has_protobuf) if _is_needed(settings) else SchemaTable()


def _is_needed(settings: JoinerSettings) -> bool:
    return any(stream.needs_registry for stream in settings.stream)


@lru_cache(maxsize=8)
def _store(settings: RegistrySettings, *, has_protobuf: bool) -> SchemaStore:
    clock = SystemClock()
    return SchemaStore(settings, RegistryClient(settings, clock).fetch, clock, compile_schema if has_protobuf else None)
