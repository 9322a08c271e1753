"""The launcher, tested without running servers: ports, programs, templates, command line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from broker.stack import LocalStack, MissingPartsError, StackError, local, parts
from broker.stack.__main__ import main
from broker.stack.parts import Parts
from broker.stack.ports import choose_port, is_free
from connector.settings import ConnectorSettings

ROOT = Path(__file__).parents[3]
TEMPLATES = Path(local.__file__).with_name("templates")


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, Go and influxd."""
    for name in ("JAVA_HOME", "LSB_INFLUXD", "LSB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)


def test_a_usual_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(taken)
        chosen = choose_port(taken)
    assert chosen != taken
    assert is_free(chosen)


def test_a_port_is_never_given_twice() -> None:
    ports = [choose_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    assert 20_000 <= choose_port() < 32_000


@pytest.mark.usefixtures("bare_machine")
def test_everything_missing_is_named_at_once_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(MissingPartsError) as caught:
        LocalStack(tmp_path).up()
    assert len(caught.value.problems) == 2, "Kafka and the MQTT broker lack the same program"
    for word in ("java", "openjdk-17-jre-headless", "Go 1.24", "LSB_INFLUXD"):
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("bare_machine")
def test_parts_in_the_cache_need_no_go(tmp_path: Path) -> None:
    found = Parts(tmp_path, print)
    (tmp_path / f"influxdb-{parts.INFLUXDB_VERSION}").mkdir()
    assert found.problem_influxdb() is None


@pytest.mark.usefixtures("bare_machine")
def test_fetching_names_everything_missing_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "java is missing" in said
    assert "influxd is missing" in said
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_fetched_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_INFLUXD", sys.executable)
    stack, fetched = LocalStack(tmp_path), list[str]()
    for server in stack.servers:
        monkeypatch.setattr(server, "fetch", lambda name=server.name: fetched.append(name))
    stack.fetch([stack.influxdb])
    assert fetched == ["influxdb"]
    assert list(tmp_path.iterdir()) == []


_FAKE_JAVA = """\
#!/bin/sh
for config; do :; done
folder=$(sed -n 's/^log.dirs=//p' "$config")
case "$*" in *StorageTool*) echo format >>"$FORMATS"; echo empty >"$folder/bootstrap.checkpoint"
  printf 'node.id=1\\ncluster.id=first\\nversion=1\\n' >"$folder/meta.properties" ;; esac
"""
"""A java that formats a folder as Kafka's tool does, and starts nothing."""


def test_kafkas_tool_formats_one_folder_and_each_later_one_gets_a_copy_with_an_id_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, formats = tmp_path / "bin" / "java", tmp_path / "formats"
    java.parent.mkdir()
    java.write_text(_FAKE_JAVA)
    java.chmod(0o755)
    (tmp_path / "parts" / f"kafka-{parts.KAFKA_VERSION}-log4j").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("FORMATS", str(formats))
    ids = set[str]()
    for name in ("one", "two"):
        kafka = LocalStack(tmp_path / name, parts=tmp_path / "parts", usual_ports=False).kafka
        for _ in range(2):
            kafka.start()
            kafka.stop()
        assert (kafka.data / "bootstrap.checkpoint").read_text() == "empty\n"
        node, cluster, version = (kafka.data / "meta.properties").read_text().splitlines()
        assert (node, version) == ("node.id=1", "version=1")
        ids.add(cluster)
        assert f"log.dirs={kafka.data}" in (kafka.folder / "kafka.properties").read_text()
    assert len(ids - {"cluster.id=first"}) == 2
    assert formats.read_text() == "format\n"


def test_a_failed_fetch_cancels_the_others_and_the_next_one_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = LocalStack(tmp_path)
    outcomes: list[str] = []

    def fail() -> None:
        raise StackError("no line to the registry")

    def take_long() -> None:
        outcomes.append("cancelled" if stack._parts.cancel.wait(60) else "not cancelled")  # noqa: SLF001 - see `Parts`

    for server, fetch in ((stack.kafka, fail), (stack.mqtt, take_long)):
        monkeypatch.setattr(server, "problem", lambda: None)
        monkeypatch.setattr(server, "fetch", fetch)
    with pytest.raises(StackError, match="no line to the registry"):
        stack.fetch([stack.kafka, stack.mqtt])
    assert outcomes == ["cancelled"]
    assert not stack._parts.cancel.is_set()  # noqa: SLF001 - see `Parts`


def test_influxdb_is_fetched_without_any_package() -> None:
    # `make test` builds it while the packages are being installed.
    command = [sys.executable, "-S", "-m", "broker.stack", "fetch", "influxdb"]
    given = {**os.environ, "LSB_INFLUXD": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_named_influxd_that_is_no_program_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_INFLUXD", str(tmp_path / "nothing"))
    assert "LSB_INFLUXD" in (Parts(tmp_path, print).problem_influxdb() or "")


def test_a_folder_is_no_influxd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_INFLUXD", str(tmp_path))
    assert "is not an executable file" in (Parts(tmp_path, print).problem_influxdb() or "")


def test_the_database_on_this_machine_is_not_asked_by_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{choose_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    influxdb = LocalStack(tmp_path).influxdb
    influxdb.folder.mkdir(parents=True)
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        (influxdb.folder / "ports.json").write_text(f'{{"port": {server.server_port}, "rpc": 1}}')
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        influxdb.create_database("lsb")
        thread.join()


def test_a_failed_download_leaves_no_part_and_shows_the_tools_output(tmp_path: Path) -> None:
    fetched = Parts(tmp_path / "cache", print)
    with pytest.raises(StackError, match=r"status 3(?s:.)*no line to the registry"):
        fetched.run("kafka", ["sh", "-c", "echo no line to the registry; exit 3"])
    assert not (tmp_path / "cache").exists()


def test_a_fetch_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    fetched = Parts(tmp_path, print)
    threading.Timer(0.1, fetched.cancel.set).start()
    with pytest.raises(StackError, match="cancelled while 'sleep 60 …' was running"):
        fetched.run("kafka", ["sleep", "60"])


def test_only_a_download_that_fails_raises_the_question_of_the_network(tmp_path: Path) -> None:
    for is_download in (True, False):
        with pytest.raises(StackError) as refused:
            Parts(tmp_path, print).run("kafka", ["sh", "-c", "exit 3"], is_download=is_download)
        assert ("network" in str(refused.value)) == is_download


def test_a_command_that_takes_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_COMMAND_DEADLINE_S", 0.0)
    with pytest.raises(StackError, match="kafka: 'sleep 60 …' took more than 0 s"):
        Parts(tmp_path, print).run("kafka", ["sleep", "60"], is_download=False)


def test_an_altered_jar_is_refused(tmp_path: Path) -> None:
    sums = tmp_path / "jars.sha256"
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "good.jar").write_bytes(b"")
    (jars / "bad.jar").write_bytes(b"altered")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    sums.write_text(f"{empty}  good.jar\n{empty}  bad.jar\n{empty}  absent.jar\n")
    with pytest.raises(StackError, match=r"absent\.jar, bad\.jar"):
        parts.check_hashes(jars, sums)
    (jars / "bad.jar").write_bytes(b"")
    (jars / "absent.jar").write_bytes(b"")
    parts.check_hashes(jars, sums)


def test_the_mqtt_broker_can_look_for_messages_several_times_at_once() -> None:
    text = (TEMPLATES / "MqttBroker.java").read_text()
    found = re.search(r"MAX_INFLIGHT_WINDOW_SIZE_MESSAGES = (\d+);", text)
    assert found is not None
    window, packet_ids = int(found[1]), 65_535
    # Each poll reserves a range of packet identifiers, which must cover all messages that a connector has in flight.
    assert packet_ids // window >= 4
    assert window >= ConnectorSettings.model_fields["in_flight_max"].default


@pytest.mark.parametrize("template", ["kafka.properties", "hivemq.xml", "influxdb.conf"])
def test_every_server_is_bound_to_the_loopback_and_every_setting_has_a_reason(template: str) -> None:
    text = (TEMPLATES / template).read_text()
    assert "127.0.0.1" in text
    assert not re.search(r"\b0\.0\.0\.0\b", text)
    assert re.search(r"^\s*(#|<!--)", text, re.MULTILINE)


def test_status_of_a_stack_that_never_ran_says_so_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("stopped") == 3


def test_down_without_anything_running_is_fine_twice(tmp_path: Path) -> None:
    assert main(["down", "--dir", str(tmp_path)]) == 0
    assert main(["down", "--dir", str(tmp_path)]) == 0


def test_env_without_anything_running_says_how_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--dir", str(tmp_path)]) == 1
    assert "broker.stack up" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["sideways"], ["up", "zookeeper"], ["logs", "-n", "many"]])
def test_wrong_usage_is_refused_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("left", ["", '{"port": 1', "[]", '{"port": "x"}'])
def test_ports_whose_file_was_truncated_by_a_kill_are_chosen_again(tmp_path: Path, left: str) -> None:
    mqtt = LocalStack(tmp_path).mqtt
    mqtt.folder.mkdir(parents=True)
    (mqtt.folder / "ports.json").write_text(left)
    with pytest.raises(StackError, match="is damaged"):
        _ = mqtt.port
    chosen = mqtt._choose_ports()  # noqa: SLF001 - the first step of a start
    assert mqtt.port == chosen["port"]
