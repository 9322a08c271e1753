"""Access to the librdkafka that ships with confluent_kafka: its public functions and client handles.

The functions and structures are declared in librdkafka's public header (rdkafka.h), and their ABI is stable within a
major version. A client's handle (``rd_kafka_t``), in contrast, is private to confluent_kafka, which stores it as the
first member of the client object. Each handle is verified before use: confluent_kafka sets the handle's opaque
pointer to the address of the client object, so librdkafka must return that address.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, Producer
from llvmlite import binding

POINTER: Final = ctypes.c_void_p

F_COPY: Final = 0x2
"""RD_KAFKA_MSG_F_COPY: librdkafka copies each message's bytes before the produce call returns."""

_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_opaque": (POINTER, (POINTER,)),
    "rd_kafka_conf": (POINTER, (POINTER,)),
    "rd_kafka_conf_set_error_cb": (None, (POINTER, POINTER)),
    "rd_kafka_queue_new": (POINTER, (POINTER,)),
    "rd_kafka_queue_destroy": (None, (POINTER,)),
    "rd_kafka_queue_get_partition": (POINTER, (POINTER, ctypes.c_char_p, ctypes.c_int32)),
    "rd_kafka_queue_forward": (None, (POINTER, POINTER)),
    "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, (POINTER, ctypes.c_int, POINTER, ctypes.c_size_t)),
    "rd_kafka_topic_new": (POINTER, (POINTER, ctypes.c_char_p, POINTER)),
    "rd_kafka_topic_name": (ctypes.c_char_p, (POINTER,)),
    "rd_kafka_topic_destroy": (None, (POINTER,)),
    "rd_kafka_begin_transaction": (POINTER, (POINTER,)),
    "rd_kafka_error_code": (ctypes.c_int, (POINTER,)),
    "rd_kafka_error_string": (ctypes.c_char_p, (POINTER,)),
    "rd_kafka_error_is_fatal": (ctypes.c_int, (POINTER,)),
    "rd_kafka_error_is_retriable": (ctypes.c_int, (POINTER,)),
    "rd_kafka_error_txn_requires_abort": (ctypes.c_int, (POINTER,)),
    "rd_kafka_error_destroy": (None, (POINTER,)),
    "rd_kafka_produce_batch": (ctypes.c_int, (POINTER, ctypes.c_int32, ctypes.c_int, POINTER, ctypes.c_int)),
    "rd_kafka_message_destroy": (None, (POINTER,)),
    "rd_kafka_message_timestamp": (ctypes.c_int64, (POINTER, POINTER)),
}

_COMPILED: Final = ("rd_kafka_message_destroy", "rd_kafka_message_timestamp")
"""Functions that the compiled loops call."""


_HANDLE_AT: Final = object.__basicsize__
"""The offset of the handle in a confluent_kafka object: right after the Python object header."""

_MAPS: Final = Path("/proc/self/maps")
_PATH: Final = 5
"""The column that holds the path of a mapped file."""


class Unavailable(Exception):
    """Raised if librdkafka cannot be called directly in this environment. The message says why."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the librdkafka library that confluent_kafka has loaded. Raises `Unavailable` if it cannot be used."""
    try:
        loaded = ctypes.CDLL(path_of_library())
        for name, (returns, takes) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = returns, takes
    except (OSError, AttributeError) as error:
        raise Unavailable(str(error)) from error
    for name in _COMPILED:
        binding.add_symbol(name, ctypes.cast(getattr(loaded, name), POINTER).value)
    return loaded


def path_of_library() -> str:
    """Return the path of the librdkafka library that confluent_kafka has loaded. Raises `Unavailable`."""
    if sys.platform != "linux" or sys.implementation.name != "cpython" or sys.byteorder != "little":
        raise Unavailable(
            "native calls require CPython on little-endian Linux, but this is "
            f"{sys.implementation.name} on {sys.byteorder}-endian {sys.platform}"
        )
    mapped = (line.split(maxsplit=5) for line in _mappings())
    paths = {columns[5] for columns in mapped if len(columns) > _PATH and "librdkafka" in Path(columns[_PATH]).name}
    if len(paths) != 1:
        raise Unavailable(f"expected exactly one librdkafka library in this process, but found {len(paths)}")
    return paths.pop()


def handle_of(client: Consumer | Producer) -> int:
    """Return the address of a client's ``rd_kafka_t``, which is valid as long as the client exists.

    Raises `Unavailable` if the address cannot be determined.
    """
    if not isinstance(client, Consumer | Producer):
        raise Unavailable(f"{type(client).__name__} is not a client of confluent_kafka")
    loaded = library()
    handle = current_handle(client)
    if handle is None:
        raise Unavailable("the client is closed")
    if not _is_mapped(handle) or loaded.rd_kafka_opaque(handle) != id(client):
        raise Unavailable(f"confluent_kafka {confluent_kafka.__version__} has an unsupported object layout")
    return handle


def load_loops() -> ModuleType:
    """Import and return the module of compiled loops, which call librdkafka. Raises `Unavailable`."""
    library()
    try:
        return importlib.import_module("broker.kafka.native.memory")
    except Exception as error:
        # There is no telling what exceptions other versions of numba or llvmlite raise.
        raise Unavailable(f"the loops could not be compiled: {error}") from error


def current_handle(client: Consumer | Producer) -> int | None:
    """Return the handle of a client, or None if the client is closed. Call `handle_of` first to verify the layout."""
    return POINTER.from_address(id(client) + _HANDLE_AT).value


def _is_mapped(address: int) -> bool:
    """Return whether one page of memory at ``address`` is mapped for reading and writing in this process."""
    for line in _mappings():
        begin, _, end = line.split(maxsplit=1)[0].partition("-")
        if int(begin, 16) <= address and address + mmap.PAGESIZE <= int(end, 16):
            return line.split(maxsplit=2)[1].startswith("rw")
    return False


def _mappings() -> list[str]:
    try:
        return _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise Unavailable(str(error)) from error
