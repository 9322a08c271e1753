"""The contest's workload in Avro: how the contenders are told what to read, and how it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.contest.contenders import AVRO_CONTENDERS, CONTENDERS, application_of
from bench.contest.job import Job, Limits
from bench.contest.running import arena, runs
from bench.contest.running.arena import Arena, settings_of
from bench.contest.running.runs import Task
from bench.contest.workload.inputs import AVRO
from bench.harness.other_layout import SCHEMA
from bench.peers import environments
from bench.peers.jvm import programs
from broker.settings import KafkaSettings

REGISTRY = "http://127.0.0.1:2/path"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(KafkaSettings(bootstrap_servers="host:1"), tmp_path, "job", "data-0", 1, registry=REGISTRY)


def test_the_joiner_reads_avro_as_two_streams_of_a_topic(job: Job) -> None:
    settings = application_of(job).settings
    assert settings.registry.url == REGISTRY
    assert [(one.name, one.topic, one.format) for one in settings.stream] == [
        ("speed", "data-0", "avro"),
        ("torque", "data-0", "avro"),
    ]
    assert application_of(replace(job, registry="")).settings.stream == []


@pytest.mark.parametrize("name", AVRO_CONTENDERS[1:])
def test_every_peer_is_given_the_schema_or_the_registry_only_if_the_input_is_in_avro(
    name: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "command", lambda *_: ["joins.py", "--classpath", "classes"])
    monkeypatch.setattr(environments, "interpreter", lambda *_: Path("/python"))
    monkeypatch.setattr(environments, "flink_jars", lambda *_: Path("/connector"))
    monkeypatch.setattr(environments, "_flink_avro_jars", lambda *_: Path("/format"))
    ((*command,),) = CONTENDERS[name].commands(job)
    ((*in_json,),) = CONTENDERS[name].commands(replace(job, registry=""))
    wanted = ["--registry", REGISTRY] if name == "Flink interval join" else ["--schema", SCHEMA]
    assert command[command.index(wanted[0]) + 1] == wanted[1]
    assert not {"--registry", "--schema"} & set(in_json)
    assert ("/format" in command, "/format" in in_json) == (name == "Flink interval join", False)
    # The port of the registry differs between runs.
    assert REGISTRY not in settings_of(CONTENDERS[name], job)[0]
    assert settings_of(CONTENDERS[name], replace(job, registry=""))


class Stack:
    """Counts how often the registry is started."""

    def __init__(self) -> None:
        self.kafka = SimpleNamespace(address="host:1")
        self.registry = SimpleNamespace(pid=None, url=REGISTRY)
        self.started: list[Any] = []

    def up(self, servers: list[Any]) -> None:
        self.started += servers
        self.registry.pid = 1


def test_the_registry_is_started_once_and_only_for_a_workload_in_avro(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []
    stack: Any = Stack()
    monkeypatch.setattr(arena, "produce", lambda _, topic, __, schema_id: written.append((topic, schema_id)))
    monkeypatch.setattr(arena, "make_topic", lambda *_, **__: None)
    monkeypatch.setattr(arena, "register", lambda url: 7 if url == REGISTRY else 0)
    here = Arena(stack, tmp_path)
    who = CONTENDERS["Kafka Streams by hand"]
    jobs: list[Job] = []
    for workload in ("alternating", AVRO, AVRO):
        assert bool(stack.started) == (len(jobs) > 1)
        _, job, _ = runs._prepare(here, Task(who, workload, 100, Limits()))  # noqa: SLF001 - without a contender
        jobs.append(job)
    assert stack.started == [stack.registry]
    assert written == [("data-0", 0), ("data-1", 7)]
    assert [job.registry for job in jobs] == ["", REGISTRY, REGISTRY]
    assert [job.data for job in jobs] == ["data-0", "data-1", "data-1"]
