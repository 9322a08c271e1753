"""Are schemas compiled as `protoc` does it, within limits, and is nothing guessed if that fails?"""

from __future__ import annotations

import base64
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from joiner.mapping.framing import SCHEMA_LENGTH_MAX, RegisteredSchema
from joiner.mapping.protobuf import compiling
from joiner.mapping.protobuf.compiling import CompilerFailed, compile_schema
from joiner.mapping.protobuf.messages import find_reader
from joiner.mapping.protobuf.reading import decode_message

INNER = 'syntax = "proto3"; package x; message Inner { int32 i = 1; }'
MIDDLE = 'syntax = "proto3"; package x; import "in/inner.proto"; message Middle { Inner inner = 1; }'
OUTER = 'syntax = "proto3"; package x; import "middle.proto"; message Outer { Middle middle = 1; }'
NAMES = ("in/inner.proto", "middle.proto")
FIELDS = " ".join(f"N n{number} = {number};" for number in range(1, 8_000))
LARGE = f'syntax = "proto3"; package {"p" * 500}; message {"M" * 500} {{ message N {{}} {FIELDS} }}'
"""Each field names its type with all that it is in."""

DATA = b"\x0a\x04\x0a\x02\x08\x07"


def compiled(text: str, references: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> RegisteredSchema:
    return compile_schema(RegisteredSchema("PROTOBUF", text, references, names))


def decoded(schema: RegisteredSchema, data: bytes) -> Any:
    assert schema.mistake == ""
    return decode_message(find_reader(schema.descriptors, (0,)), data)


def serialized(schema: RegisteredSchema) -> dict[str, str]:
    """Return the files of a schema as descriptors in base64, as the Python client of a registry registers them."""
    files = FileDescriptorSet.FromString(schema.descriptors).file
    return {file.name: base64.b64encode(file.SerializeToString()).decode() for file in files}


def test_a_schema_uses_the_types_of_those_that_it_imports() -> None:
    assert decoded(compiled(OUTER, (INNER, MIDDLE), NAMES), DATA) == {"middle": {"inner": {"i": 7}}}


def test_a_schema_can_be_a_serialized_descriptor() -> None:
    whole = compiled(OUTER, (INNER, MIDDLE), NAMES)
    texts = serialized(whole)
    wanted = {"middle": {"inner": {"i": 7}}}
    for references in ((INNER, MIDDLE), (texts["in/inner.proto"], MIDDLE), (INNER, texts["middle.proto"])):
        for text in (OUTER, texts[compiling.MAIN]):
            assert decoded(compiled(text, references, NAMES), DATA) == wanted


def test_a_serialized_descriptor_can_import_what_no_registry_has() -> None:
    text = """
        syntax = "proto3";
        import "google/protobuf/timestamp.proto";
        import "confluent/types/decimal.proto";
        message M { google.protobuf.Timestamp t = 1; confluent.type.Decimal d = 2; }
    """
    plain = compiled(text)
    assert decoded(compiled(serialized(plain)[compiling.MAIN]), b"\x0a\0") == {"t": 0}


def test_files_that_everybody_has_cannot_be_replaced() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }'
    other = 'syntax = "proto3"; package google.protobuf; message Timestamp { string zone = 1; }'
    found = compiled(text, (other,), ("google/protobuf/timestamp.proto",))
    assert decoded(found, b"\x0a\x02\x08\x01") == {"t": 10**9}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message {", "lsb-schema.proto:1:9: Expected message name."),
        ('syntax = "proto3"; message M { x.Y y = 1; }', 'lsb-schema.proto:1:32: "x.Y" is not defined.'),
        ('syntax = "proto3"; import "none.proto";', 'Import "none.proto" was not found or had errors'),
        ('syntax = "proto3"; import "/etc/hostname";', 'Import "/etc/hostname" was not found or had errors'),
        ('syntax = "proto3"; import "../x.proto";', 'Import "../x.proto" was not found or had errors'),
        ('syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }', "Field number 1 has already been used"),
        ('{"type": "object"}', "Expected top-level statement"),
        ("bm9uc2Vuc2U=", "neither a .proto file nor a descriptor in base64"),
        ("AAAAA", "neither a .proto file nor a descriptor in base64"),
        # An option without its name, which is required.
        (base64.b64encode(b"\x42\x05\xba\x3e\x02\x12\0").decode(), "neither a .proto file nor a descriptor in base64"),
        ('syntax = "proto3"; import "x: warning: y";', 'Import "x: warning: y" was not found or had errors'),
        (LARGE, "its descriptors have more than 4194304 bytes"),
        (" " * (SCHEMA_LENGTH_MAX + 1), "more than 1048576 characters"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    found = compiled(text)
    assert reason in found.mistake
    assert len(found.mistake) <= 300
    # The same words each time, because they become part of dead letters.
    assert compiled(text) == found


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("../a.proto",), "is not that of a .proto file"),
        (("/a.proto",), "is not that of a .proto file"),
        (("a//b.proto",), "is not that of a .proto file"),
        (("a\0.proto",), "is not that of a .proto file"),
        (("x/" * 200 + "a.proto",), "is not that of a .proto file"),
        ((compiling.MAIN,), "is not that of a .proto file"),
        (("a.proto", "a.proto/b.proto"), "the file 'a.proto' would be a folder as well"),
        (("b/a.proto/c.proto", "b/a.proto", "a.proto/d/e.proto", "a.proto"), "the file 'a.proto' would be a folder"),
        (("confluent/meta.proto/b.proto",), "the file 'confluent/meta.proto' would be a folder as well"),
        (("confluent",), "the file 'confluent' would be a folder as well"),
        ((f"{compiling.MAIN}/b.proto",), "the file 'lsb-schema.proto' would be a folder as well"),
    ],
)
def test_no_file_is_written_elsewhere(names: tuple[str, ...], reason: str) -> None:
    found = compiled('syntax = "proto3"; message M {}', (INNER,) * len(names), names)
    assert reason in found.mistake


def test_no_module_is_taken_from_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc_tools.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    names = ("grpc_tools/protoc.py", "resource.py")
    assert decoded(compiled(INNER, ("raise SystemExit(0)",) * 2, names), b"\x08\x07") == {"i": 7}


def test_a_warning_is_no_error() -> None:
    found = compiled('import "in/inner.proto"; message M { optional int32 a = 1; }', (INNER,), NAMES[:1])
    assert decoded(found, b"\x08\x07") == {"a": 7}


def test_a_compiler_that_is_too_slow_says_nothing_about_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "WAIT_S", 0.3)
    monkeypatch.setattr(compiling, "_PROGRAM", "import time; time.sleep(60)")
    begun_s = time.monotonic()
    with pytest.raises(CompilerFailed, match=r"has not compiled it within 0\.3 s"):
        compiled(INNER)
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "protoc has ended with SIGKILL$"),
        ("import sys; print('no\\nmemory', file=sys.stderr); sys.exit(3)", "protoc has ended with status 3: memory$"),
        ("raise MemoryError", "protoc has ended with status 1: MemoryError$"),
        ("import sys; sys.exit(4)", "protoc has failed without a word: the disk may be full"),
        (
            "import sys; print('.found: No space left on device', file=sys.stderr); sys.exit(4)",
            "protoc cannot write its descriptors: No space left on device$",
        ),
    ],
)
def test_a_compiler_that_dies_says_nothing_about_the_schema(
    monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    monkeypatch.setattr(compiling, "_PROGRAM", program)
    with pytest.raises(CompilerFailed, match=reason):
        compiled(INNER)


def test_descriptors_that_cannot_be_written_say_nothing_about_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    program, limit = vars(compiling)["_PROGRAM"], f"resource.RLIMIT_FSIZE: {compiling.DESCRIPTORS_BYTES_MAX + 1}"
    assert limit in program
    # The descriptors have more bytes, and the error has fewer.
    monkeypatch.setattr(compiling, "_PROGRAM", program.replace(limit, "resource.RLIMIT_FSIZE: 100"))
    with pytest.raises(CompilerFailed, match="protoc cannot write its descriptors: File too large"):
        compiled(OUTER, (INNER, MIDDLE), NAMES)


def test_the_folder_for_temporary_files_can_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a list of folders, a colon would separate two.
    folder = tmp_path / "a:b c"
    folder.mkdir()
    texts = serialized(compiled(OUTER, (INNER, MIDDLE), NAMES))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert decoded(compiled(texts[compiling.MAIN], (INNER, texts["middle.proto"]), NAMES), DATA) == {
        "middle": {"inner": {"i": 7}}
    }


def test_a_folder_that_cannot_be_written_says_nothing_about_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "TemporaryDirectory", lambda **_: os.scandir(tmp_path / "none"))
    with pytest.raises(CompilerFailed, match="protoc cannot be run: FileNotFoundError"):
        compiled(INNER)


def test_a_large_schema_is_compiled_within_the_limits() -> None:
    message = "".join(f"optional int32 field_{place} = {place};" for place in range(1, 1_000))
    text = 'syntax = "proto2";' + "".join(f"message M{place} {{ {message} }}" for place in range(24))
    assert SCHEMA_LENGTH_MAX * 0.7 < len(text) <= SCHEMA_LENGTH_MAX
    assert decoded(compiled(text), b"\x08\x07") == {"field_1": 7}


def test_an_endless_nesting_is_refused_or_not_decided() -> None:
    text = 'syntax = "proto3";' + "message M {" * 50_000
    with suppress(CompilerFailed):  # it has run out of memory
        assert compiled(text).mistake
