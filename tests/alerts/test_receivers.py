"""What each kind of receiver is sent, and that no secret is in it."""

from __future__ import annotations

import json

import pytest

from spotguard.alerts.incidents import Incident
from spotguard.alerts.receivers import Origin, Receiver

ORIGIN = Origin("node-3", "gpt")
FIRING = Incident("failure", (("run_id", "gpt"), ("rank", "1")), "rank 1 <b> & co", began=100.0, until=3700.0)
OVER = Incident("failure", FIRING.labels, FIRING.summary, began=100.0, ended=160.0, until=3700.0)
LASTING = Incident("disk-full", (("place", "stage"),), "full", began=100.0)
#: Monotonic seconds of the messages: ten minutes after the incidents began.
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
    firing, over, lasting = receiver.body([FIRING, OVER, LASTING], ORIGIN, NOW, wall)
    assert firing == {
        "labels": {
            "alertname": "failure",
            "severity": "critical",
            "service": "spotguard",
            "instance": "node-3",
            "run_id": "gpt",
            "rank": "1",
        },
        "annotations": {"summary": "rank 1 <b> & co"},
        "startsAt": "2026-11-20T10:00:00.000Z",
        "endsAt": "2026-11-20T11:00:00.000Z",
    }
    assert (over["labels"], over["endsAt"]) == (firing["labels"], "2026-11-20T10:01:00.000Z")
    assert lasting["labels"]["place"] == "stage"
    assert (lasting["startsAt"], lasting["endsAt"]) == (
        "2026-11-20T10:00:00.000Z",
        "2026-11-20T10:14:00.000Z",
    )


def test_slack_gets_one_text_in_which_nothing_is_markup() -> None:
    body = Receiver.of("slack:http://h/x").body([FIRING, OVER], ORIGIN, NOW, wall)
    assert body == {
        "text": "spotguard, run gpt on node-3:\n"
        "*CRITICAL* failure: rank 1 &lt;b&gt; &amp; co\n"
        "resolved failure: rank 1 &lt;b&gt; &amp; co"
    }
    many = Receiver.of("slack:http://h/x").body([FIRING] * 25, ORIGIN, NOW, wall)["text"].splitlines()
    assert (len(many), many[-1]) == (22, "and 5 more")


def test_others_get_plain_json() -> None:
    body = Receiver.of("http://h/x").body([FIRING, OVER], ORIGIN, NOW, wall)
    assert (body["version"], body["host"], body["run_id"]) == (1, "node-3", "gpt")
    assert body["incidents"][0]["incident"] == "failure"
    assert [each["status"] for each in body["incidents"]] == ["firing", "resolved"]
    assert body["incidents"][1]["endsAt"] == "2026-11-20T10:01:00.000Z"


@pytest.mark.parametrize("given", ["http://h:9093", "slack:http://h/x", "http://h/x"])
def test_secrets_are_replaced_everywhere(given: str) -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    text = f"cannot read https://me:swordfish7@h/x with {key}"
    incident = Incident("failure", (("source", f"s3://{key}"),), text, began=100.0)
    said = json.dumps(Receiver.of(given).body([incident], ORIGIN, NOW, wall))
    assert "cannot read" in said
    assert "swordfish7" not in said
    assert key not in said
