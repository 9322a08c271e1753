"""Is what the Helm chart renders valid and safe, and can each service use what its pods get? Without a cluster."""

from __future__ import annotations

import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from broker.settings import SettingsError, load_settings
from connector.settings import Settings as ConnectorService
from control.access.users import Users, add_user
from control.roles import Role
from control.settings import Settings as ControlService
from control.settings import check_access
from db_connector.settings import DbConnectorSettings
from joiner.runtime.settings import JoinerSettings
from tests.integration.helm import (
    CHART,
    NAMESPACE,
    POD_ADDRESS,
    Helm,
    Manifest,
    Workload,
    fetched,
    oldest_kubernetes,
    workloads,
)
from tests.unit.project.test_operations import documented_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETS: Final = ("default", "everything", "secure", "joiner-only")
SERVICES: Final[dict[str, type[Any]]] = {
    "joiner": JoinerSettings,
    "connector": ConnectorService,
    "db_connector": DbConnectorSettings,
    "control": ControlService,
}
DEFINED_ELSEWHERE: Final = {"monitoring.coreos.com/v1": "ServiceMonitor", "keda.sh/v1alpha1": "ScaledObject"}
"""Kinds that are not part of Kubernetes, so its schemas do not describe them."""


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, fetched once."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("Helm is fetched as a program for Linux on x86-64, and this is another machine")
    return Helm(fetched(), tmp_path_factory.mktemp("helm"))


def values_of(name: str) -> list[str]:
    """Return the arguments for a set of values."""
    return [] if name == "default" else ["--values", str(CHART / "ci" / f"{name}-values.yaml")]


@pytest.fixture(scope="module", params=SETS)
def manifests(helm: Helm, request: pytest.FixtureRequest) -> list[Manifest]:
    """What the chart renders for each set of values."""
    return helm.rendered(*values_of(request.param))


def named(manifests: list[Manifest], component: str) -> Workload:
    """Return the workload of a component."""
    (found,) = [one for one in workloads(manifests) if one.component == component]
    return found


@pytest.mark.parametrize("name", SETS)
def test_helm_finds_no_fault_in_the_chart(helm: Helm, name: str) -> None:
    done = helm.try_to("lint", "--strict", str(CHART), *values_of(name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_every_manifest_is_one_of_the_kubernetes_api(manifests: list[Manifest], version: str) -> None:
    wanted = oldest_kubernetes() if version == "oldest" else kubernetes_validate.latest_version()
    checked = 0
    for manifest in manifests:
        if DEFINED_ELSEWHERE.get(manifest["apiVersion"]) != manifest["kind"]:
            kubernetes_validate.validate(manifest, wanted, strict=True)
            checked += 1
    assert checked >= 3


def test_objects_find_each_other(manifests: list[Manifest]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    assert {one["metadata"]["namespace"] for one in manifests} == {NAMESPACE}
    for workload in workloads(manifests):
        spec, labels = workload.manifest["spec"], workload.pod["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        if workload.manifest["kind"] == "StatefulSet":
            assert ("Service", spec["serviceName"]) in names
        (volume,) = [one for one in workload.spec["volumes"] if one["name"] == "config"]
        assert ("ConfigMap", volume["configMap"]["name"]) in names
    pods = [workload.pod["metadata"]["labels"] for workload in workloads(manifests)]
    for one in manifests:
        if one["kind"] == "Service":
            selected = [labels for labels in pods if one["spec"]["selector"].items() <= labels.items()]
            assert len(selected) == 1, one["metadata"]["name"]
            ports = [port["name"] for port in _of(manifests, selected[0]).container["ports"]]
            assert [port["targetPort"] for port in one["spec"]["ports"]] == ports
        if one["kind"] == "PodDisruptionBudget":
            selector = one["spec"]["selector"]["matchLabels"]
            assert len([labels for labels in pods if selector.items() <= labels.items()]) == 1


def _of(manifests: list[Manifest], labels: Manifest) -> Workload:
    return named(manifests, labels["app.kubernetes.io/component"])


def test_every_container_has_no_rights_and_a_root_that_is_read_only(manifests: list[Manifest]) -> None:
    for workload in workloads(manifests):
        spec = workload.spec
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert re.fullmatch(r"\S+:[\w.-]+", container["image"])
        writable = {one["mountPath"] for one in workload.container["volumeMounts"] if not one.get("readOnly")}
        assert writable <= {"/tmp", "/var/cache/lsb"}  # noqa: S108 - of the container


def _certificate(folder: Path) -> dict[str, str]:
    """Return a certificate and its key, as a Secret of type kubernetes.io/tls has them, and its issuer."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=join.plant"),
        ],
        check=True,
        capture_output=True,
    )
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    return {"tls.key": key.read_text(), "tls.crt": certificate.read_text(), "ca.crt": certificate.read_text()}


@pytest.fixture
def content(manifests: list[Manifest], tmp_path: Path) -> dict[str, dict[str, str]]:
    """The content of all objects that pods mount, by name and key."""
    certificate = _certificate(tmp_path)
    users = tmp_path / "users"
    add_user(users, "ada", Role.VIEWER, None)
    (config,) = [one for one in manifests if one["kind"] == "ConfigMap"]
    return {
        config["metadata"]["name"]: config["data"],
        "kafka": {"kafka-password": "of kafka"},
        "mqtt": {"password": "of mqtt"},
        "influxdb": {"token": "of influxdb"},
        "postgresql": {"password": "of postgresql"},
        "registry": {"password": "of the registry"},
        "control-users": {"users": users.read_text()},
        "join-plant-tls": certificate,
        "plant-ca": {"ca.crt": certificate["ca.crt"]},
        "functions": {"plant.py": ""},
    }


def test_every_service_accepts_the_settings_that_its_pods_get(
    manifests: list[Manifest], content: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("LSB_")]:
        monkeypatch.delenv(variable)
    for workload in workloads(manifests):
        root = tmp_path / workload.component
        workload.mount(root, content)
        file = root / workload.container["command"][-1].lstrip("/")
        # The files are below another folder here.
        file.write_text(file.read_text().replace('"/etc/lsb', f'"{root}/etc/lsb'))
        with monkeypatch.context() as pod:
            for name, value in workload.environment().items():
                pod.setenv(name, value.replace("/etc/lsb", f"{root}/etc/lsb"))
            settings = load_settings(SERVICES[workload.component], file)
        port = workload.container["ports"][0]["containerPort"]
        if workload.component == "control":
            check_access(settings.control)
            assert settings.control.listen.endswith(f":{port}")
            if settings.control.users_file is not None:
                Users(settings.control.users_file)
        else:
            assert settings.metrics.listen.endswith(f":{port}")
            assert not settings.metrics.listen.startswith("127.")
        if workload.component == "joiner":
            assert settings.application.instance == f"{workload.manifest['metadata']['name']}-0"


def test_each_secret_is_mounted_only_into_the_pods_that_need_it(helm: Helm) -> None:
    found = {one.component: one.secrets() for one in workloads(helm.rendered(*values_of("secure")))}
    assert found == {
        "joiner": {"kafka", "registry"},
        "connector": {"kafka", "mqtt"},
        "db_connector": {"kafka", "influxdb", "postgresql"},
        "control": {"kafka", "registry", "control-users", "join-plant-tls"},
    }


def test_the_control_service_is_on_the_loopback_of_its_pod_unless_it_has_tls_and_users(helm: Helm) -> None:
    manifests = helm.rendered()
    control = named(manifests, "control")
    assert control.environment()["LSB_CONTROL__LISTEN"] == "127.0.0.1:8090"
    assert "exec" in control.container["livenessProbe"]
    services = {one["metadata"]["name"] for one in manifests if one["kind"] == "Service"}
    assert control.manifest["metadata"]["name"] not in services
    manifests = helm.rendered(*values_of("secure"))
    control = named(manifests, "control")
    name = control.manifest["metadata"]["name"]
    assert control.environment()["LSB_CONTROL__LISTEN"] == "0.0.0.0:8090"
    assert yaml.safe_load(control.environment()["LSB_CONTROL__HOSTS"]) == [
        *("join.plant", name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc", POD_ADDRESS)
    ]
    assert control.container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert [one["metadata"]["name"] for one in manifests if one["kind"] == "Service"].count(name) == 1
    behind = named(helm.rendered(*values_of("everything")), "control")
    assert behind.environment()["LSB_CONTROL__PROXIES"] == '["10.0.0.0/8"]'
    assert behind.container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["control.tls.secret=t"], "secrets.controlUsers.name"),
        (["control.proxies={10.0.0.1}", "secrets.controlUsers.name=u"], "control.hosts"),
        (["joiner.autoscaling.enabled=true"], "joiner.autoscaling.prometheusAddress is empty"),
        (
            [
                *("joiner.autoscaling.enabled=true", "joiner.autoscaling.prometheusAddress=http://p:9090"),
                "joiner.autoscaling.minReplicas=6",
            ],
            "minReplicas is greater than maxReplicas",
        ),
        (["joiner.replica=3"], "Additional property replica is not allowed"),
        (["environment.LSB_METRICS__LISTEN=1"], "LSB_METRICS__LISTEN"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(helm: Helm, given: list[str], fault: str) -> None:
    done = helm.template(*(argument for one in given for argument in ("--set", one)))
    assert done.returncode != 0
    assert fault in done.stderr


def test_a_setting_that_a_service_refuses_is_refused_here_too(
    helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `test_every_service_accepts_the_settings_that_its_pods_get` checks can fail."""
    manifests = helm.rendered("--set", "connector.environment.LSB_CONNECTOR__LINGER=long")
    connector = named(manifests, "connector")
    (config,) = [one for one in manifests if one["kind"] == "ConfigMap"]
    connector.mount(tmp_path, {config["metadata"]["name"]: config["data"]})
    for name, value in connector.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="LINGER"):
        load_settings(ConnectorService, tmp_path / connector.container["command"][-1].lstrip("/"))


def test_a_joiner_alone_is_a_stateful_set_with_its_service_and_settings(helm: Helm) -> None:
    manifests = helm.rendered(*values_of("joiner-only"))
    assert sorted(one["kind"] for one in manifests) == ["ConfigMap", "Service", "StatefulSet"]
    assert named(manifests, "joiner").manifest["spec"]["replicas"] == 1


def test_keda_scales_the_joiner_by_metrics_that_exist(helm: Helm) -> None:
    manifests = helm.rendered(*values_of("everything"))
    joiner = named(manifests, "joiner").manifest
    (scaled,) = [one["spec"] for one in manifests if one["kind"] == "ScaledObject"]
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": joiner["metadata"]["name"]}
    assert scaled["scaleTargetRef"] == target
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (3, 10)
    # Otherwise, each upgrade would undo what KEDA has done.
    assert "replicas" not in joiner["spec"]
    metadata = [trigger["metadata"] for trigger in scaled["triggers"]]
    assert [one["threshold"] for one in metadata] == ["2000000", "50000"]
    for one in metadata:
        assert set(re.findall(r"\blsb_\w+", one["query"])) <= documented_metrics()
        assert f'{{namespace="{NAMESPACE}",service="{joiner["spec"]["serviceName"]}"}}' in one["query"]
    manifests = helm.rendered(*values_of("everything"), "--set", 'joiner.autoscaling.selector=job="mill"')
    (scaled,) = [one["spec"] for one in manifests if one["kind"] == "ScaledObject"]
    assert {re.sub(r".*(\{.*\}).*", r"\1", one["metadata"]["query"]) for one in scaled["triggers"]} == {'{job="mill"}'}


def test_prometheus_finds_the_pods_under_the_names_that_the_alerts_use(helm: Helm) -> None:
    manifests = helm.rendered(*values_of("everything"))
    (monitor,) = [one["spec"] for one in manifests if one["kind"] == "ServiceMonitor"]
    (rule,) = monitor["selector"]["matchExpressions"]
    services = [one for one in manifests if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None"]
    found = {one["metadata"]["labels"][monitor["jobLabel"]] for one in services}
    assert found == set(rule["values"]) == {"joiner", "connector", "db_connector"}
    for one in services:
        assert monitor["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
        assert one["spec"]["publishNotReadyAddresses"]
        assert [port["name"] for port in one["spec"]["ports"]] == [monitor["endpoints"][0]["port"]]
    manifests = helm.rendered(
        *values_of("secure"),
        *(
            "--set",
            "metrics.serviceMonitor.enabled=true,control.metricsToken.name=token,control.tls.authorityKey=ca.crt",
        ),
    )
    (control,) = [
        one["spec"]["endpoints"][0]
        for one in manifests
        if one["kind"] == "ServiceMonitor" and one["metadata"]["name"].endswith("-control")
    ]
    assert control["authorization"] == {"credentials": {"name": "token", "key": "token"}}
    assert control["tlsConfig"] == {
        "ca": {"secret": {"name": "join-plant-tls", "key": "ca.crt"}},
        "serverName": "join.plant",
    }


def test_network_policies_let_in_whom_the_values_name_and_nobody_else(helm: Helm) -> None:
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in helm.rendered(*values_of("everything"))
        if one["kind"] == "NetworkPolicy"
    }
    assert set(policies) == {"plant", "plant-control"}
    (of_all,) = policies["plant"]["ingress"]
    assert [port["port"] for port in of_all["ports"]] == ["metrics"]
    assert of_all["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    (of_control,) = policies["plant-control"]["ingress"]
    assert [port["port"] for port in of_control["ports"]] == ["http"]
    assert policies["plant"]["policyTypes"] == ["Ingress", "Egress"]
    (closed,) = [
        one["spec"] for one in helm.rendered("--set", "networkPolicy.enabled=true") if one["kind"] == "NetworkPolicy"
    ]
    assert "ingress" not in closed
    assert closed["policyTypes"] == ["Ingress"]


def test_pods_are_spread_and_only_pods_of_the_joiner_count(helm: Helm) -> None:
    joiner = named(helm.rendered(*values_of("everything")), "joiner")
    constraints = joiner.spec["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in constraints] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for one in constraints:
        selector = one["labelSelector"]["matchLabels"]
        assert selector["app.kubernetes.io/component"] == "joiner"
        assert selector.items() <= joiner.pod["metadata"]["labels"].items()


@pytest.mark.parametrize("name", SETS)
def test_the_notes_name_objects_that_exist(helm: Helm, tmp_path: Path, name: str) -> None:
    # Helm shows the notes only in a cluster, so here they become a part of an object.
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    notes = chart / "templates/NOTES.txt"
    (chart / "templates/_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes.read_text()}{{{{ end }}}}')
    (chart / "templates/notes.yaml").write_text('{kind: Notes, text: {{ include "notes" . | quote }}}')
    manifests = helm.rendered(*values_of(name), chart=chart)
    (text,) = [one["text"] for one in manifests if one["kind"] == "Notes"]
    known = {f"{one.manifest['kind'].lower()}/{one.manifest['metadata']['name']}" for one in workloads(manifests)}
    told = set(re.findall(r"\b(?:deployment|statefulset)/[\w-]+", text))
    assert told
    assert told <= known
    is_open = name in {"everything", "secure"}
    assert ("port-forward" in text) == (name == "default")
    assert ("available at join.plant" in text) == is_open
    assert ("nobody takes over" in text) == (name == "joiner-only")


def test_the_names_of_pods_fit_whatever_the_release_is_called(helm: Helm) -> None:
    for manifest in helm.rendered(release="r" * 53):
        # A StatefulSet appends a hash of ten characters and a hyphen to a label of its pods.
        assert len(manifest["metadata"]["name"]) <= (52 if manifest["kind"] == "StatefulSet" else 63)
