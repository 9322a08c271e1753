"""Builds the pass-throughs in C and in Java. Both take the same arguments, which `PassThrough.java` describes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.kafka.native.library import path_of_library
from broker.stack.local import DEFAULT_FOLDER
from broker.stack.parts import Parts, parts_folder

_HERE: Final = Path(__file__).parent


def _in_c(folder: Path) -> list[str]:
    program, library = folder / "pass_through", path_of_library()
    source = _HERE / "pass_through.c"
    link = [library, f"-Wl,-rpath,{Path(library).parent}", "-lpthread"]
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, source, *link], check=True)  # noqa: S607 - the compiler
    return [str(program)]


def _in_java(folder: Path) -> list[str]:
    jars = f"{Parts(parts_folder(DEFAULT_FOLDER), print).kafka()}/*"
    source = str(_HERE / "PassThrough.java")
    subprocess.run(["javac", "-cp", jars, "-d", folder, source], check=True)  # noqa: S607 - the compiler
    return ["java", "-Xmx2g", "-cp", f"{jars}:{folder}", "PassThrough"]


_COMPILERS: Final[dict[str, tuple[str, Callable[[Path], list[str]]]]] = {
    "pass-through in C": ("cc", _in_c),
    "pass-through in Java": ("javac", _in_java),
}


def build(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Build the pass-throughs in ``folder``. Return their commands by name, and a message for each missing compiler."""
    found, missing = {}, []
    for name, (compiler, make) in _COMPILERS.items():
        if shutil.which(compiler):
            found[name] = make(folder)
        else:
            missing.append(f"{name}: {compiler} is not installed")
    return found, missing
