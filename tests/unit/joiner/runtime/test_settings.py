"""Are all invalid settings reported together, and does the fingerprint change exactly when the results would?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker import settings_errors
from broker.settings import SettingsError, load_settings
from joiner.runtime.settings import JoinerSettings
from tests.unit.joiner.runtime.joiner_inputs import changed, fingerprint, make_settings

BASE: dict[str, Any] = {
    "kafka": {"bootstrap_servers": "a:1"},
    "topics": {"partitions": 3},
    "events": {"time_unit": "ms"},
    "application": {"name": "app"},
    "join": [
        {"name": "one", "left": "l", "right": "r", "output": "o", "tolerance": "5s", "lateness": "1s"},
        {"name": "two", "left": "r", "right": "x", "output": "p"},
    ],
}


UNNAMEABLE = (".", "..", "...", "-a", ".a", "_a", "", "a" * 101, "a b", "é", "a\n", "a\0")
"""Names that do not begin with a letter or digit, or that Kafka does not accept for a topic or an instance."""

CHANGING = st.one_of(
    st.tuples(st.just(("events", "time_unit")), st.sampled_from(["s", "us", "ns"])),
    st.tuples(st.just(("application", "max_future_skew")), st.integers(1, 10**6).map(lambda n: f"{n}us")),
    st.tuples(st.sampled_from([("topics", "out"), ("topics", "late"), ("topics", "rejected")]), st.just("other.out")),
    st.tuples(st.just(("topics", "data")), st.from_regex(r"[a-z]{1,9}\.in", fullmatch=True)),
    st.tuples(st.just(("join", 0, "tolerance")), st.integers(0, 4999).map(lambda n: f"{n}ms")),
    st.tuples(st.just(("join", 0, "tolerance")), st.none()),
    st.tuples(st.just(("join", 0, "lateness")), st.integers(0, 999).map(lambda n: [f"{n}ms", "1s"])),
    st.tuples(st.just(("join", 0, "left")), st.from_regex(r"[a-k]{1,9}", fullmatch=True)),
    st.tuples(st.just(("join", 1, "right")), st.just({"topic": "elsewhere"})),
    st.tuples(st.just(("join", 1, "name")), st.from_regex(r"[a-m]{3,9}", fullmatch=True)),
)
KEEPING = st.one_of(
    st.tuples(st.just(("kafka", "bootstrap_servers")), st.from_regex(r"[a-z]{1,9}:\d", fullmatch=True)),
    st.tuples(st.just(("topics", "unmatched")), st.from_regex(r"[a-z]{1,9}\.none", fullmatch=True)),
    st.tuples(st.just(("topics", "retention")), st.integers(1, 99).map(lambda n: f"{n}h")),
    st.tuples(st.just(("application", "instance")), st.from_regex(r"[a-z]{1,9}", fullmatch=True)),
    st.tuples(st.just(("application", "batch_records_max")), st.integers(1, 10**6)),
    st.tuples(st.just(("application", "snapshot_interval")), st.integers(1, 99).map(lambda n: f"{n}s")),
    st.tuples(st.just(("application", "watermark_interval")), st.integers(1, 99).map(lambda n: f"{n}s")),
    st.tuples(st.just(("application", "buffer_records_max")), st.integers(1, 10**6)),
    st.tuples(st.just(("join", 0, "tolerance")), st.sampled_from(["5000ms", "5 s", "5000000us"])),
    st.tuples(st.just(("join", 0, "lateness")), st.just(["1s", "1000ms"])),
    st.tuples(
        st.just(("join", 0, "left")), st.sampled_from([{"quantity": "l"}, {"topic": "machine.data", "quantity": "l"}])
    ),
    st.tuples(st.just(("application", "max_future_skew")), st.sampled_from(["24h", "1d"])),
    st.tuples(st.just(("join", 0, "function")), st.sampled_from(["product", "both", "mean"])),
)


@given(CHANGING)
def test_the_fingerprint_changes_with_what_changes_the_results(change: tuple[tuple[Any, ...], Any]) -> None:
    assert fingerprint(changed(BASE, *change)) != fingerprint(BASE)


@given(KEEPING)
def test_the_fingerprint_stays_with_everything_else(change: tuple[tuple[Any, ...], Any]) -> None:
    assert fingerprint(changed(BASE, *change)) == fingerprint(BASE)


def test_the_order_of_joins_does_not_matter_to_the_fingerprint() -> None:
    assert fingerprint(changed(BASE, ("join",), BASE["join"][::-1])) == fingerprint(BASE)


def test_the_fingerprint_is_the_same_in_every_release() -> None:
    assert fingerprint(BASE) == "93c98d04c0168672609cae812f81608c5084a4d2d25f7ee64c30c6618661423a"


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("join", 0, "right"), "l", "'one': a record may be on both sides"),
        (("join", 0, "right"), {"topic": "machine.data"}, "'one': a record may be on both sides"),
        (("join", 1, "name"), "one", "two joins have the name 'one'"),
        (("join", 1, "output"), "o", "two joins have the output 'o'"),
        (("join", 0, "left"), {"topic": "machine.out"}, "'machine.out' is both read and written"),
        (("topics", "data"), "app.state", "'app.state' is both read and written"),
        (("topics", "data"), "app.control", "'app.control' is both read and written"),
        (("join", 0, "left"), {}, "specify a quantity, a topic, or both"),
        (("join", 0, "name"), "a:b", "name"),
        (("join", 0, "tolerance"), 5, "expected a duration with a unit"),
        (("join", 0, "direction"), "sideways", "direction"),
        (("join", 0, "surprise"), 1, "surprise"),
        (("join", 0, "function"), "a b", "function"),
        (("application", "name"), "a/b", "name"),
        *((("application", "name"), name, "application.name") for name in UNNAMEABLE),
        *((("application", "instance"), name, "application.instance") for name in UNNAMEABLE),
        *((("join", 0, "name"), name, "join.0.name") for name in UNNAMEABLE),
        *((("topics", "out"), name, "topics.out") for name in (".", "..", "", "a/b", "a" * 201)),
        (("join", 0, "left"), {"topic": ".."}, "join.0.left.topic"),
        (("topics", "late"), "machine.out", "more than one kind of output would be written to the topic 'machine.out'"),
        (("topics", "out"), "machine_data", "'machine.data' and 'machine_data' differ only in '.' and '_'"),
        (("join", 0, "left"), {"topic": "app_state"}, "'app.state' and 'app_state' differ only in '.' and '_'"),
        (("topics", "partitions"), 0, "partitions"),
        (("join",), [], "join"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(path: tuple[Any, ...], value: Any, what: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JoinerSettings.model_validate(changed(BASE, path, value))
    assert what in str(refused.value)


def test_a_topic_of_its_own_for_each_side_may_hold_the_same_quantities() -> None:
    settings = JoinerSettings.model_validate(changed(BASE, ("join", 0, "right"), {"topic": "other", "quantity": "l"}))
    assert settings.input_topics == ["machine.data", "other"]


def test_every_mistake_is_told_at_once_and_where_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(
        "[kafk]\n[topics]\npartitions = 0\n[application]\nahead_max = 5\nnme = 'x'\n"
        "[[join]]\nname = 'a:b'\nleft = 'x'\nright = 'y'\n"
    )
    monkeypatch.setenv("LSB_EVENTS__TIME_UNIT", "weeks")
    with pytest.raises(SettingsError) as refused:
        load_settings(JoinerSettings, file)
    told = str(refused.value).splitlines()
    for what in (
        "[kafk]",
        "topics.partitions",
        "application.max_future_skew",
        "application.nme",
        "join.0.name",
        "join.0.output",
    ):
        assert any(what in line for line in told), what
    assert any("LSB_EVENTS__TIME_UNIT" in line for line in told)
    assert all(str(file) in line for line in told)


def test_joins_that_do_not_fit_together_are_told_as_plain_sentences(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(2 * "[[join]]\nname = 'a'\nleft = 'x'\nright = 'x'\noutput = 'z'\n")
    with pytest.raises(SettingsError) as refused:
        load_settings(JoinerSettings, file)
    told = str(refused.value)
    assert told.startswith(f"{file}: two joins have the name 'a'; two joins have the output 'z'; join 'a': a record")
    assert "LSB_" not in told


def test_kafka_s_own_names_of_topics_are_taken() -> None:
    settings = JoinerSettings.model_validate(changed(BASE, ("join", 0, "left"), {"topic": "_events-of.PLC_7"}))
    assert settings.input_topics == ["_events-of.PLC_7", "machine.data"]


@pytest.mark.parametrize(
    ("host", "instance"),
    [
        ("mill-1.plant", "mill-1.plant"),
        ("bad host", "bad-host"),
        ("..", "host"),
        ("-é", "host"),
        ("a" * 255, "a" * 100),
    ],
)
def test_a_host_may_have_a_name_that_no_instance_may_have(
    monkeypatch: pytest.MonkeyPatch, host: str, instance: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    settings = JoinerSettings.model_validate(BASE)
    assert settings.application.instance == instance
    assert (
        JoinerSettings.model_validate(changed(BASE, ("application", "instance"), instance)).application
        == settings.application
    )


@pytest.mark.parametrize("site", ["spark", "Green", "", "-a", "a" * 33, "a.b"])
def test_a_site_that_cannot_be_one_is_refused(site: str) -> None:
    with pytest.raises(ValidationError, match="site"):
        make_settings(application={"site": site})


def test_each_site_has_a_group_of_its_own_and_no_other_application_has_it() -> None:
    settings = make_settings(application={"name": "mill"})
    assert settings.membership_group("process") == "mill"
    other = settings.membership_group("green")
    assert other != "mill"
    with pytest.raises(ValidationError, match="name"):
        make_settings(application={"name": other})


BAD_JOIN = """
[[join]]
name = "a"
left = "x"
right = "x"
function = "nobody:knows"
output = "o"
lateness = "1x"

[[join]]
name = "a"
left = "x"
right = "y"
function = "products"
output = "p"
"""


@pytest.mark.parametrize("lateness", ["1x", "1s"])
def test_all_mistakes_are_told_in_one_round_and_each_once(tmp_path: Path, lateness: str) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(BAD_JOIN.replace("1x", lateness))
    with pytest.raises(SettingsError) as refused:
        load_settings(JoinerSettings, file)
    told = str(refused.value)
    for mistake in (
        "two joins have the name 'a'",
        "join 'a': a record may be on both sides",
        "the joining function 'nobody:knows' cannot be loaded",
        "unknown joining function 'products'",
    ):
        assert told.count(mistake) == 1
    assert told.count("join.0.lateness") == (lateness == "1x")


@pytest.mark.parametrize(
    ("line", "setting"), [('[topics]\ndata_format = "arrow"', "topics.data_format"), ('results = "arrow"', "results")]
)
def test_arrow_without_its_package_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, setting: str
) -> None:
    file = tmp_path / "lsb.toml"
    joins = '[[join]]\nname = "a"\nleft = "x"\nright = "y"\noutput = "o"\n'
    file.write_text(f'[application]\nname = "app"\n{line}\n{joins}')
    assert load_settings(JoinerSettings, file).application.name == "app"
    monkeypatch.setattr(settings_errors, "find_spec", lambda _package: None)
    with pytest.raises(SettingsError) as error:
        load_settings(JoinerSettings, file)
    (text,) = str(error.value).splitlines()
    assert setting in text
    assert "pip install 'localstreambuffer[arrow]'" in text


def test_protobuf_without_its_package_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lsb.toml"
    streams = "".join(
        f'[[stream]]\nname = "{name}"\ntopic = "t"\nformat = "protobuf"\nkey = "$.k"\ntime = "$.t"\nvalue = "$.v"\n'
        for name in ("x", "y")
    )
    joins = '[[join]]\nname = "a"\nleft = "x"\nright = "y"\noutput = "o"\n'
    file.write_text(f'[application]\nname = "app"\n[registry]\nurl = "http://r"\n{streams}{joins}')
    assert load_settings(JoinerSettings, file).needs_extras() == {"protobuf": "stream.format"}
    monkeypatch.setattr(settings_errors, "find_spec", lambda _package: None)
    with pytest.raises(SettingsError) as error:
        load_settings(JoinerSettings, file)
    (text,) = str(error.value).splitlines()
    assert "stream.format: grpcio-tools is not installed: pip install 'localstreambuffer[protobuf]' (" in text


def test_only_a_format_that_is_not_json_changes_the_fingerprint() -> None:
    assert fingerprint(changed(BASE, ("topics", "data_format"), "json")) == fingerprint(BASE)
    assert fingerprint(changed(BASE, ("topics", "data_format"), "arrow")) != fingerprint(BASE)
    assert fingerprint(changed(BASE, ("application", "results"), "arrow")) == fingerprint(BASE)
