"""What each kind of receiver is sent, and that no secret is in it."""

from __future__ import annotations

import json

import pytest

from spotguard.alerts.evaluation import Alert
from spotguard.alerts.receivers import Origin, Receiver, as_json, ended_alert, ended_by_now
from spotguard.alerts.rules import Rule

ORIGIN = Origin("node-3", "gpt")
RULE = Rule("stall", incident="stall", severity="critical")
FIRING = Alert(RULE, (("run_id", "gpt"), ("rank", "1")), "rank 1 <b> & co", began=100.0, until=3700.0)
OVER = Alert(RULE, FIRING.labels, FIRING.summary, began=100.0, ended=160.0, until=3700.0)
OF_METRIC = Alert(
    Rule("disk-full", metric="spotguard_disk_free_ratio"), (("path", "/"),), "full", began=100.0
)
#: Monotonic seconds of the messages: ten minutes after the alerts began.
NOW = 700.0


def wall(at: float) -> float:
    return 1795168800.0 + at - 100.0


@pytest.mark.parametrize(
    ("given", "kind", "url"),
    [
        ("http://127.0.0.1:9093", "alertmanager", "http://127.0.0.1:9093/api/v2/alerts"),
        ("http://am.example:8080/api/v2/alerts", "alertmanager", "http://am.example:8080/api/v2/alerts"),
        ("alertmanager:https://am.example/", "alertmanager", "https://am.example/api/v2/alerts"),
        ("alertmanager:https://proxy/am/api/v2/alerts", "alertmanager", "https://proxy/am/api/v2/alerts"),
        ("https://hooks.slack.com/services/T/B/x", "slack", "https://hooks.slack.com/services/T/B/x"),
        ("slack:http://mattermost/hooks/x", "slack", "http://mattermost/hooks/x"),
        ("https://example/hook", "json", "https://example/hook"),
        ("json:http://127.0.0.1:9093/x", "json", "http://127.0.0.1:9093/x"),
    ],
)
def test_a_receiver_is_known_by_its_prefix_or_its_url(given: str, kind: str, url: str) -> None:
    receiver = Receiver.of(given)
    assert (receiver.kind, receiver.url) == (kind, url)


def test_the_name_for_logs_has_no_path_and_no_password() -> None:
    assert Receiver.of("https://hooks.slack.com/services/T/B/secret").name == "slack hooks.slack.com"
    assert Receiver.of("json:http://me:pw@h:81/tok?en=1").name == "json h:81"


def test_alertmanager_gets_labels_annotations_and_an_end_in_time() -> None:
    """An end in the future for what fires: if nothing more is heard of it, it ends by itself."""
    receiver = Receiver.of("http://127.0.0.1:9093")
    firing, over, of_metric = receiver.body([FIRING, OVER, OF_METRIC], ORIGIN, NOW, wall)
    assert firing == {
        "labels": {
            "alertname": "stall",
            "severity": "critical",
            "instance": "node-3",
            "run_id": "gpt",
            "rank": "1",
        },
        "annotations": {"summary": "rank 1 <b> & co"},
        "startsAt": "2026-11-20T10:00:00.000Z",
        "endsAt": "2026-11-20T11:00:00.000Z",
    }
    assert (over["labels"], over["endsAt"]) == (firing["labels"], "2026-11-20T10:01:00.000Z")
    assert of_metric["labels"]["path"] == "/"
    assert (of_metric["startsAt"], of_metric["endsAt"]) == (
        "2026-11-20T10:00:00.000Z",
        "2026-11-20T10:14:00.000Z",
    )


def test_slack_gets_one_text_in_which_nothing_is_markup() -> None:
    body = Receiver.of("slack:http://h/x").body([FIRING, OVER], ORIGIN, NOW, wall)
    assert body == {
        "text": "spotguard, run gpt on node-3:\n"
        "*CRITICAL* stall: rank 1 &lt;b&gt; &amp; co\n"
        "resolved stall: rank 1 &lt;b&gt; &amp; co"
    }
    many = Receiver.of("slack:http://h/x").body([FIRING] * 25, ORIGIN, NOW, wall)["text"].splitlines()
    assert (len(many), many[-1]) == (22, "and 5 more")


def test_others_get_plain_json() -> None:
    body = Receiver.of("http://h/x").body([FIRING, OVER], ORIGIN, NOW, wall)
    assert (body["version"], body["host"], body["run_id"]) == (1, "node-3", "gpt")
    assert [each["status"] for each in body["alerts"]] == ["firing", "resolved"]
    assert body["alerts"][1]["endsAt"] == "2026-11-20T10:01:00.000Z"


@pytest.mark.parametrize("given", ["http://h:9093", "slack:http://h/x", "http://h/x"])
def test_secrets_are_replaced_everywhere(given: str) -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    alert = Alert(
        RULE, (("path", f"s3://{key}"),), f"cannot read https://me:swordfish7@h/x with {key}", began=100.0
    )
    said = json.dumps(Receiver.of(given).body([alert], ORIGIN, NOW, wall))
    assert "cannot read" in said
    assert "swordfish7" not in said
    assert key not in said


def test_what_alertmanager_has_of_before_ends_as_it_began() -> None:
    """Its answer has more than a message takes, and other programs may have sent anything."""
    old = {
        "labels": {"alertname": "failure"},
        "annotations": {"summary": "x"},
        "startsAt": "2026-11-20T09:00:00.000Z",
    }
    new = {**old, "startsAt": "2026-11-20T10:00:01.000Z"}
    found = [{**old, "fingerprint": "f", "status": {"state": "active"}}, new, {"labels": {}}, 3]
    assert ended_by_now(found, wall(100.0), wall(130.0)) == [{**old, "endsAt": "2026-11-20T10:00:30.000Z"}]
    assert ended_by_now({"code": 1}, 0.0, 0.0) == []


def test_the_end_of_another_agent_s_alert_has_that_alert_s_labels() -> None:
    """A receiver finds by them what it ends. A record may hold anything, so what is no label or severity is none."""
    began = as_json(OF_METRIC, ORIGIN, wall)
    alert = ended_alert(began, 1200.0, wall(1200.0))
    ended = as_json(alert, Origin("new", "other"), wall)
    assert (ended["status"], ended["labels"], ended["summary"]) == (
        "resolved",
        began["labels"],
        began["summary"],
    )
    assert (ended["startsAt"], ended["endsAt"]) == (began["startsAt"], "2026-11-20T10:18:20.000Z")
    said = Receiver.of("slack:https://x").body([alert], Origin("new", "other"), 1200.0, wall)["text"]
    assert said.splitlines()[1].startswith(f"resolved {OF_METRIC.rule.name} on {ORIGIN.host}: ")
    odd = ended_alert({"labels": {"severity": "worst", "rank": 3}, "summary": 7}, 1200.0, wall(1200.0))
    assert (odd.rule.name, odd.rule.severity, odd.labels, odd.summary) == (
        "unknown",
        "info",
        (("rank", "3"),),
        "7",
    )


@pytest.mark.parametrize("name", ["<!channel>", "a b", "", "x" * 500])
def test_a_recorded_name_that_is_no_rule_s_reaches_nobody(name: str) -> None:
    """Another program that writes to the store could call everybody in the channel."""
    labels = {"alertname": name, "run_id": "<!here>", "instance": "<!everyone>"}
    alert = ended_alert({"labels": labels, "summary": "<!channel>", "startsAt": 7}, 1200.0, wall(1200.0))
    said = Receiver.of("slack:https://x").body([alert], ORIGIN, 1200.0, wall)["text"]
    assert "resolved unknown on &lt;!everyone&gt;: &lt;!channel&gt;" in said
    assert "<!" not in said
    assert alert.began == 1200.0
