"""Compiles schemas of Protocol Buffers to descriptors, with the compiler of Google (`protoc`).

Schemas come from outside, so the compiler runs in a process of its own, with limits on its time, its memory and the
size of its output. A registry has a schema as the text of a ``.proto`` file or as a serialized descriptor in base64,
which is what the Python client of Confluent's registry registers.

Whether a schema is valid depends on the schema alone. If the compiler does not get that far, nothing is known.
"""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from joiner.mapping.framing import SCHEMA_LENGTH_MAX, RegisteredSchema

MAIN: Final = "lsb-schema.proto"
"""The name of the schema itself, which has none in the registry."""

WAIT_S: Final = 30.0
"""How long the compiler may take. A schema of usual size takes a fraction of a second."""

DESCRIPTORS_BYTES_MAX: Final = 4 * 1024 * 1024
"""The maximum size of the descriptors of a schema."""

BUILT_IN: Final = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
          repeated Rule rules = 4;
        }
        message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/types/decimal.proto": """
        syntax = "proto3";
        import public "confluent/type/decimal.proto";
    """,
}
"""What schemas can import that no registry has, besides ``google/protobuf/…``, which the compiler has."""

_CPU_S: Final = 20
_MEMORY_BYTES: Final = 1024**3
_NAME_LENGTH_MAX: Final = 200
_FILES, _GIVEN, _FOUND, _ERRORS = "files", ".given", ".found", ".errors"
"""What is in the folder from where the compiler runs: the ``.proto`` files, the descriptors that are given, those that
it writes, and its errors. It knows them by these names alone, so that the errors are the same each time. No file of a
schema has a name with a point in front."""

_REASON_LENGTH_MAX: Final = 300
_NOT_RUN, _REFUSED = 3, 4
"""The exit statuses of `_PROGRAM`. Python itself ends with 1 if there is an error that nobody has expected."""

_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)*")
"""A name of a file: none of its parts begins with a point, so that it is inside the folder."""

_NEITHER: Final = "a schema is neither a .proto file nor a descriptor in base64"
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")

# The compiler's own files come first, so that no schema can replace them.
_PROGRAM: Final = f"""
import sys
try:
    import resource
    from pathlib import Path
    import grpc_tools
    from grpc_tools import protoc
    limits = {{
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: {_CPU_S},
        resource.RLIMIT_AS: {_MEMORY_BYTES},
        resource.RLIMIT_FSIZE: {DESCRIPTORS_BYTES_MAX + 1},
    }}
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    own = Path(grpc_tools.__file__).with_name("_proto")
except BaseException as error:
    print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
    sys.exit({_NOT_RUN})
sys.exit({_REFUSED} if protoc.main(["protoc", f"-I{{own}}", *sys.argv[1:]]) else 0)
"""

_LINE: Final = re.compile(r"(?P<file>[^:]*)(?P<place>:[0-9]+:[0-9]+)?: (?P<warning>warning: )?")
"""How a line begins in which the compiler reports something about a file."""


class CompilerFailed(Exception):
    """The compiler has not found out whether a schema is valid. The message says why."""


def compile_schema(schema: RegisteredSchema) -> RegisteredSchema:
    """Return a schema with its descriptors, or with what is wrong with it.

    The descriptors are a serialized ``FileDescriptorSet`` that contains each file after those that it imports. Takes at
    most `WAIT_S`. Raises `CompilerFailed`.
    """
    try:
        return RegisteredSchema(schema.kind, "", descriptors=_compiled(schema))
    except ValueError as error:
        return RegisteredSchema(schema.kind, "", mistake=str(error)[:_REASON_LENGTH_MAX] or "it is invalid")


def _compiled(schema: RegisteredSchema) -> bytes:
    if len(schema.text) + sum(map(len, schema.references)) > SCHEMA_LENGTH_MAX:
        message = f"the schema has more than {SCHEMA_LENGTH_MAX} characters"
        raise ValueError(message)
    given = zip(schema.names, schema.references, strict=True)
    texts = {name: text for name, text in given if name not in BUILT_IN and not name.startswith("google/protobuf/")}
    _check_names(texts)
    texts |= {**BUILT_IN, MAIN: schema.text}
    serialized = {name: found for name, text in texts.items() if (found := _serialized(text)) is not None}
    plain = {name: text.encode() for name, text in texts.items() if name not in serialized}
    try:
        with TemporaryDirectory(prefix="lsb-schema-") as folder:
            return _run(Path(folder), plain, serialized)
    except OSError as error:
        message = f"protoc cannot be run: {type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
        raise CompilerFailed(message) from error


def _check_names(names: Mapping[str, str]) -> None:
    """Raise ValueError if files cannot have these names in one folder, besides `MAIN` and those that are built in."""
    for name in names:
        if len(name) > _NAME_LENGTH_MAX or _NAME.fullmatch(name) is None or name == MAIN:
            message = f"it refers to a schema by the name {name[:100]!r}, which is not that of a .proto file"
            raise ValueError(message)
    files = {*names, *BUILT_IN, MAIN}
    for folder in sorted({str(folder) for name in files for folder in Path(name).parents} & files):
        message = f"it refers to schemas by names in which the file {folder[:100]!r} would be a folder as well"
        raise ValueError(message)


def _serialized(text: str) -> bytes | None:
    """Return the descriptor that a schema is, or None if the schema is a ``.proto`` file."""
    compact = "".join(text.split())
    if _SERIALIZED.fullmatch(compact) is None:
        return None
    try:
        return base64.b64decode(compact, validate=True)
    except ValueError as error:
        raise ValueError(_NEITHER) from error


def _descriptor_set(serialized: Mapping[str, bytes]) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - protobuf is an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - as above

    whole = FileDescriptorSet()
    for name, data in serialized.items():
        file = whole.file.add()
        try:
            file.ParseFromString(data)
        except DecodeError as error:
            raise ValueError(_NEITHER) from error
        if not file.IsInitialized():  # it could not be encoded again
            raise ValueError(_NEITHER)
        file.name = name
    encoded: bytes = whole.SerializeToString()
    return encoded


def _run(folder: Path, plain: Mapping[str, bytes], serialized: Mapping[str, bytes]) -> bytes:
    """Compile files. Raises ValueError if they are invalid, `CompilerFailed`, and OSError."""
    for name, text in plain.items():
        path = folder / _FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    arguments = [f"-I{_FILES}", f"--descriptor_set_out={_FOUND}", "--include_imports"]
    if serialized:
        (folder / _GIVEN).write_bytes(_descriptor_set(serialized))
        arguments.append(f"--descriptor_set_in={_GIVEN}")
    # -P: no module is imported from the current folder.
    command = [sys.executable, "-P", "-c", _PROGRAM, *arguments, MAIN]
    try:
        with (folder / _ERRORS).open("wb") as errors:
            done = subprocess.run(  # noqa: S603 - the arguments are chosen here
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=folder,
                timeout=WAIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        message = f"protoc has not compiled it within {WAIT_S:g} s"
        raise CompilerFailed(message) from error
    # No longer than the process may write.
    reported = (folder / _ERRORS).read_bytes().decode(errors="replace")
    if done.returncode not in {0, _REFUSED}:
        # The last line names the error. Those before can be a stack trace.
        last = reported.strip().rpartition("\n")[2]
        message = f"protoc has ended with {_status(done.returncode)}: {last}"
        raise CompilerFailed(message[:_REASON_LENGTH_MAX].removesuffix(": "))
    found = folder / _FOUND
    if found.exists() and found.stat().st_size > DESCRIPTORS_BYTES_MAX:
        message = f"its descriptors have more than {DESCRIPTORS_BYTES_MAX} bytes"
        raise ValueError(message)
    if done.returncode == _REFUSED:
        _check_written(reported)
        raise ValueError(_reason(reported, {*plain, *serialized}))
    return found.read_bytes()


def _check_written(reported: str) -> None:
    """Raise `CompilerFailed` if the compiler has failed because it could not write."""
    failures = [line for line in reported.splitlines() if line.startswith(f"{_FOUND}: ")]
    if failures:
        message = f"protoc cannot write its descriptors: {failures[0].removeprefix(f'{_FOUND}: ')}"
        raise CompilerFailed(message[:_REASON_LENGTH_MAX])
    if not reported:  # it could not even say why
        message = "protoc has failed without a word: the disk may be full"
        raise CompilerFailed(message)


def _status(returned: int) -> str:
    """Return what a process has ended with: a signal, by its name, or a status."""
    try:
        return signal.Signals(-returned).name
    except ValueError:
        return f"status {returned}"


def _reason(reported: str, names: set[str]) -> str:
    """Return the first error about a file: the other lines can differ each time, because they contain times."""
    for told in reported.splitlines():
        line = told.removeprefix(f"{_FILES}/")
        begin = _LINE.match(line)
        if begin is not None and begin["file"] in names and begin["warning"] is None:
            return line
    return "protoc refuses it, without naming a line"
