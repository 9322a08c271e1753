"""Builds local stand-ins for the images of docker-compose.yml. They run the real programs.

The base image is made with Debian's debootstrap. The servers are those that the local stack downloads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from broker.stack.parts import Parts, parts_folder
from tests.compose.needs import has_compose

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = Path(__file__).parent / "images"
PREFIX: Final = "lsb-stand-in"
BASE: Final = f"{PREFIX}-base"
PACKAGES: Final = (
    "ca-certificates", "python3", "python3-venv", "python3-pip", "openjdk-17-jre-headless", "mosquitto", "prometheus",
    "curl", "wget", "netcat-openbsd", "procps", "bash",
)  # fmt: skip
COMPOSE_VERSION: Final = "v2.40.0"
SERVERS: Final = ("mosquitto", "kafka", "influxdb", "prometheus", "grafana")
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


def names() -> dict[str, str]:
    """Return the image variables of docker-compose.yml, set to the stand-ins."""
    named = {"mosquitto": "MQTT"}
    found = {f"LSB_{named.get(server, server.upper())}_IMAGE": f"{PREFIX}-{server}" for server in SERVERS}
    ours = {"LSB_IMAGE": "services", "LSB_CONTROL_IMAGE": "control", "LSB_SPARK_IMAGE": "spark"}
    return found | {variable: f"{PREFIX}-{target}" for variable, target in ours.items()}


def compose() -> list[str]:
    """Return the Compose v2 command: Docker's own, or one built from its Go module."""
    if has_compose():
        return ["docker", "compose"]
    return [str(_parts().go_tool("docker-compose", "github.com/docker/compose/v2", COMPOSE_VERSION, "cmd"))]


def build(*, spark: bool = False) -> None:
    """Build the missing images. Raise CalledProcessError if a build fails."""
    if not _is_there(BASE):
        _build_base()
    for target in ("python", *SERVERS):
        if not _is_there(f"{PREFIX}-{target}"):
            with tempfile.TemporaryDirectory() as folder:
                _gather(Path(folder))
                _docker("build", "--target", target, "--build-arg", f"BASE={BASE}", "-t", f"{PREFIX}-{target}", folder)
    for target in ("services", "control", *(("spark",) if spark else ())):
        # Always rebuilt, because the project's code may have changed. The other layers are cached.
        python = ("--build-arg", f"PYTHON_IMAGE={PREFIX}-python", "--network", "host")
        _docker("build", *python, "--target", target, "-t", f"{PREFIX}-{target}", str(ROOT))


def _build_base() -> None:
    print(f"{BASE}: Debian with {', '.join(PACKAGES)}", flush=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        tree = Path(folder) / "tree"
        given = ["--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(tree)]
        subprocess.run(["debootstrap", *given], check=True, stdout=subprocess.DEVNULL)
        import_tree(tree)


def import_tree(tree: Path) -> None:
    """Make the base image from a Debian tree, adding this machine's certificates."""
    shutil.copy(_CERTIFICATES, tree / _CERTIFICATES.relative_to("/"))
    with subprocess.Popen(["tar", "-C", str(tree), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "import", "-", BASE], stdin=tar.stdout, check=True, stdout=subprocess.DEVNULL)


def _gather(folder: Path) -> None:
    """Collect the files that the Dockerfile of the stand-ins copies."""
    shutil.copytree(IMAGES, folder, dirs_exist_ok=True)
    parts = _parts()
    shutil.copytree(parts.kafka(), folder / "jars")
    shutil.copy(parts.influxd(), folder / "influxd")


def _parts() -> Parts:
    return Parts(parts_folder(ROOT / ".lsb"), print)


def _is_there(image: str) -> bool:
    return not subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode


def _docker(*arguments: str) -> None:
    # Debian's Docker engine has only the classic builder.
    subprocess.run(["docker", *arguments], check=True, env=os.environ | {"DOCKER_BUILDKIT": "0"}, stdout=sys.stderr)


if __name__ == "__main__":
    build(spark="--spark" in sys.argv)
