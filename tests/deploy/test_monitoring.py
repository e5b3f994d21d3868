"""What operators are given: the rules, the dashboard and the inputs are whole, and say what the agent really exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.telemetry.metrics.definitions import METRICS
from spotguard.deploy.monitoring import FILES, text

yaml: Any = pytest.importorskip("yaml")

from tests.deploy.grafana import NAME, grafana_alerts, prometheus_alerts  # noqa: E402 - it needs YAML

RULES_TEST = Path(__file__).with_name("rules_test.yml")

#: What a histogram becomes.
PARTS = ("_bucket", "_sum", "_count")
#: What Prometheus and its library make by themselves.
FOREIGN = frozenset({"up", "ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"})


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text("dashboard.json"))
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text("rules.yml"))["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (one["target"]["expr"] for one in dashboard()["annotations"]["list"])


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def exported() -> set[str]:
    names = {metric.name for metric in METRICS}
    return names | {f"{m.name}{part}" for m in METRICS if m.type == "histogram" for part in PARTS}


# --- from an install ---


def printed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spotguard", "deploy", "monitoring", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_install_lists_and_prints_every_file() -> None:
    """Without a checkout: each that is there is named, and each that is named is there."""
    there = {each.name for each in (files("spotguard.deploy") / "template-files").iterdir()}
    assert {name for name in there if name.endswith((".yml", ".json"))} == set(FILES)
    listed = printed().stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(FILES)
    assert printed("rules.yml").stdout == text("rules.yml")


# --- Prometheus's own checks ---


def promtool(program: str, *words: str, stdin: str = "") -> str:
    done = subprocess.run([program, *words], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_the_scrape(
    require_server: Callable[[str], str], tmp_path: Path
) -> None:
    program = require_server("promtool")
    for name in ("rules.yml", "prometheus.yml"):
        (tmp_path / name).write_text(text(name))
    assert f"{len(rules())} rules found" in promtool(program, "check", "rules", str(tmp_path / "rules.yml"))
    assert "1 rule files found" in promtool(program, "check", "config", str(tmp_path / "prometheus.yml"))


def test_each_alert_fires_when_it_should_and_not_else(require_server: Callable[[str], str]) -> None:
    assert "SUCCESS" in promtool(require_server("promtool"), "test", "rules", str(RULES_TEST))


def test_no_alert_and_no_record_is_left_untested() -> None:
    """Each alert is seen firing, and not firing; each record is asked for."""
    tests = yaml.safe_load(RULES_TEST.read_text())["tests"]
    alerts = [each for test in tests for each in test.get("alert_rule_test", [])]
    ours = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {each["alertname"] for each in alerts if each.get("exp_alerts")} == ours
    assert {each["alertname"] for each in alerts if not each.get("exp_alerts")} == ours
    asked = " ".join(each["expr"] for test in tests for each in test.get("promql_expr_test", []))
    assert [name for name in recorded() if name not in asked] == []


def test_each_alert_says_how_grave_it_is_what_is_so_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning"), rule
            assert set(rule["annotations"]) == {"summary", "description"}, rule


# --- that they ask for what there is ---


def test_every_query_asks_for_what_is_exported_or_recorded() -> None:
    known = exported() | recorded() | FOREIGN
    for expression in expressions():
        asked = re.findall(r"\b(?:\w+:)?(?:spotguard|process|up|ALERTS)[a-z_]*(?::\w+)?\b(?!\")", expression)
        names = [name for name in asked if not re.search(rf'"[^"]*\b{name}\b[^"]*"', expression)]
        assert names, expression
        assert [name for name in names if name not in known] == [], expression


def test_every_label_that_is_asked_for_is_one_of_its_metric() -> None:
    """A label that is spelt wrong selects nothing, for ever."""
    labels = {
        f"{metric.name}{part}": {*metric.labels, "job", "instance", "le"}
        for metric in METRICS
        for part in ("", *PARTS)
    }
    for expression in expressions():
        for name, inside in re.findall(r"(spotguard_[a-z_]+)\{([^}]*)\}", expression):
            asked = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', inside))
            assert asked <= labels[name], expression


def test_every_metric_is_watched_somewhere() -> None:
    """On the dashboard or in a rule: a number that nobody looks at is not worth its series."""
    asked = " ".join(expressions())
    assert [metric.name for metric in METRICS if metric.name not in asked] == []


# --- Grafana's own alerting ---


def grafana_rules() -> list[dict[str, Any]]:
    body = yaml.safe_load(text(NAME))
    assert body["apiVersion"] == 1
    (group,) = body["groups"]
    assert {"orgId", "name", "folder", "interval"} < set(group)
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_grafana_has_the_alerts_of_prometheus() -> None:
    """Made from one source: `python -m tests.docs.generated` writes it again."""
    assert text(NAME) == grafana_alerts()
    found = [
        (rule["title"], rule["data"][0]["model"]["expr"], rule["for"], rule["labels"])
        for rule in grafana_rules()
    ]
    assert found == [
        (alert["alert"], alert["expr"].strip(), alert.get("for", "0s"), alert["labels"])
        for alert in prometheus_alerts()
    ]


def test_each_rule_of_grafana_s_is_what_its_reader_takes() -> None:
    """A uid of 40 letters at most, queries that name each other, words of its own for its states."""
    uids = [rule["uid"] for rule in grafana_rules()]
    assert len(set(uids)) == len(uids)
    for rule in grafana_rules():
        assert re.fullmatch("[a-zA-Z0-9_-]{1,40}", rule["uid"])
        names = [query["refId"] for query in rule["data"]]
        assert names == [query["model"]["refId"] for query in rule["data"]] == ["query", "math", "threshold"]
        assert rule["condition"] == names[-1]
        assert rule["data"][0]["relativeTimeRange"]["from"] > rule["data"][0]["relativeTimeRange"]["to"]
        assert rule["noDataState"] in ("Alerting", "NoData", "OK")
        assert rule["execErrState"] in ("Alerting", "Error", "OK")


def test_grafana_expands_no_variable_of_a_template_and_asks_nothing_in_one() -> None:
    """`$labels` would be a variable of its environment, and it has no `query` there."""
    for rule in grafana_rules():
        for words in rule["annotations"].values():
            assert "$" not in words, rule["title"]
            assert [each for each in re.findall(r"\{\{.*?\}\}", words) if "query " in each] == []


def test_prometheus_parses_each_expression_of_grafana_s(
    require_server: Callable[[str], str], tmp_path: Path
) -> None:
    rules = [{"alert": rule["title"], "expr": rule["data"][0]["model"]["expr"]} for rule in grafana_rules()]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "grafana", "rules": rules}]}))
    found = promtool(require_server("promtool"), "check", "rules", str(path))
    assert f"{len(rules)} rules found" in found


# --- the dashboard ---


def test_every_panel_says_what_it_shows_in_which_unit() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


def test_the_dashboard_belongs_to_no_one_s_grafana() -> None:
    """Its data source is a variable, wherever one is named, and it has no id of a database."""
    assert "id" not in dashboard()

    def sources(value: object) -> Iterator[object]:
        if isinstance(value, dict):
            yield from [value["datasource"]] if "datasource" in value else []
            for one in value.values():
                yield from sources(one)
        elif isinstance(value, list):
            for one in value:
                yield from sources(one)

    found = list(sources(dashboard()))
    assert len(found) > len(panels())
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in found)


def test_no_two_panels_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
