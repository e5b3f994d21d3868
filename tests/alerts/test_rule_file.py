"""The file of rules: what it changes, what it adds, and an error for each mistake in it that says where and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.alerts.evaluation import Evaluation
from spotguard.alerts.rule_file import default_rules, default_text, idle_actions, read_rules
from spotguard.alerts.rules import Rule, labels_in
from spotguard.providers.errors import UsageError


def rules(folder: Path, text: str) -> dict[str, Rule]:
    path = folder / "alerts.toml"
    path.write_text(text)
    return {rule.name: rule for rule in read_rules(str(path))}


def test_the_defaults_hold_without_a_file_and_make_no_alert_of_nothing() -> None:
    found = {rule.name: rule for rule in default_rules()}
    assert {
        "failure",
        "stall",
        "steps-lost",
        "checkpoint-old",
        "blind",
        "disk-full",
        "slow-steps",
        "too-long",
    } <= set(found)
    assert found["failure"].actions == ("webhook", "command")
    assert found["too-long"].threshold == 7 * 86400
    assert all(list(labels_in(rule)) for rule in found.values())
    assert list(Evaluation(default_rules()).sample([], 0.0)) == []


def test_a_file_changes_a_default_switches_one_off_and_adds_one(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        """
[rule.checkpoint-old]
threshold = 5
severity = "critical"

[rule.blind]
enabled = false

[rule.step-seconds-high]
metric = "spotguard_step_seconds"
deviation = 6
window = "2m"
for = 30
actions = ["log", "command"]
""",
    )
    assert (found["checkpoint-old"].threshold, found["checkpoint-old"].severity) == (5.0, "critical")
    assert found["checkpoint-old"].of == "spotguard_checkpoint_interval_seconds"
    assert "blind" not in found
    added = found["step-seconds-high"]
    assert (added.deviation, added.window, added.lasts, added.actions) == (
        6.0,
        120.0,
        30.0,
        ("log", "command"),
    )
    assert found["stall"] == {rule.name: rule for rule in default_rules()}["stall"]


def test_a_deviation_replaces_a_default_s_threshold(tmp_path: Path) -> None:
    found = rules(tmp_path, "[rule.slow-steps]\ndeviation = 5\n")
    assert (found["slow-steps"].deviation, found["slow-steps"].of) == (5.0, "")


RULE = '[rule.mine]\nmetric = "spotguard_step"\n'


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("[rule.mine\n", "", "expected TOML: "),
        ("[rules.mine]\n", "line 1", "unknown key 'rules': expected tables such as [rule.stall]"),
        ("rule = 3\n", "", "expected tables such as [rule.stall]"),
        (
            '[rule.stall]\n\nseverty = "info"\n',
            "line 3",
            "unknown key 'severty' in rule stall: did you mean severity?",
        ),
        (
            '[rule.stall]\nseverity = "loud"\n',
            "line 2",
            "severity of rule stall 'loud': expected one of info, warning, critical",
        ),
        (
            '[rule.stall]\nactions = ["mail"]\n',
            "line 2",
            "['mail']: expected a list of some of log, webhook, command",
        ),
        ('[rule.stall]\nactions = "log"\n', "line 2", "'log': expected a list of"),
        ("[rule.stall]\nenabled = 1\n", "line 2", "enabled of rule stall 1: expected true or false"),
        ("[rule.stall]\nthreshold = 1\n", "line 2", "expected no such key in a rule of an incident"),
        ('[rule.stall]\nsummary = "{"\n', "line 2", "a line with names of labels in braces"),
        (
            '[rule.stall]\nsummary = "{step:.2f}"\n',
            "line 2",
            "'{step:.2f}': expected a line with names of labels",
        ),
        ('[rule.stall]\nsummary = "{text!r}"\n', "line 2", "and nothing beside the name"),
        ('[rule.mine]\nmetric = ["x"]\n', "line 2", "['x']: expected a metric of"),
        (f'{RULE}threshold = 1\nof = ["x"]\n', "line 4", "['x']: expected a metric of"),
        (f"{RULE}threshold = 1{'0' * 400}\n", "line 3", "a number of many digits: expected a number"),
        (f"{RULE}threshold = 1{'0' * 5000}\n", "", "expected TOML: Exceeds the limit"),
        (f"{RULE}where = {'[' * 5000}\n", "", "expected TOML: it nests too deeply"),
        (
            "[rule.stall]\nwhere = { rnk = 1 }\n",
            "line 2",
            "where of rule stall 'rnk': expected a fact of stall",
        ),
        ('[rule.stall]\nsummary = "{0.x}"\n', "line 2", "a line with names of labels in braces"),
        ("[rule.Mine]\nthreshold = 1\n", "line 1", "expected a name of small letters, digits and -"),
        (
            "[rule.mine]\nthreshold = 1\n",
            "line 1",
            "rule mine 'mine': expected a metric or an incident, or the name of a default rule [SG705]",
        ),
        ("[rule.blnd]\nenabled = false\n", "line 1", "or the name of a default rule: did you mean blind?"),
        (f'{RULE}deviation = 3\nof = "spotguard_step"\n', "line 4", "expected history for a deviation"),
        (f"{RULE}threshold = 1\nwhere = {{ rank = 1.0 }}\n", "line 4", "expected texts, whole numbers, true"),
        (
            f"{RULE}threshold = 1\nwhere = {{ rank = {{ a = 1 }} }}\n",
            "line 4",
            "expected texts, whole numbers",
        ),
        (f'{RULE}incident = "stall"\n', "line 1", "a metric or an incident, and not both"),
        ('[rule.mine]\nincident = "flood"\n', "line 2", "one of failure, stall, outcome, kernel, agent-lost"),
        ('[rule.mine]\nmetric = "spotguard_stp"\nthreshold = 1\n', "line 2", "did you mean spotguard_step?"),
        ('[rule.mine]\nmetric = "spotguard_stage_left_seconds"\n', "line 2", "that is no histogram"),
        (RULE, "line 1", "expected a threshold or a deviation, and not both"),
        (
            f"{RULE}threshold = 1\ndeviation = 2\n",
            "line 1",
            "expected a threshold or a deviation, and not both",
        ),
        (f"{RULE}threshold = 1\nkeep = 3\n", "line 4", "no such key in a rule of a metric"),
        (f"{RULE}threshold = true\n", "line 3", "True: expected a number, or a duration such as 90s"),
        (f'{RULE}threshold = "much"\n', "line 3", "'much': expected a number, or a duration"),
        (f"{RULE}threshold = nan\n", "line 3", "expected a number, or a duration"),
        (f"{RULE}deviation = -1\n", "line 3", "expected a number above 0"),
        (f'{RULE}deviation = 3\ncompare = "=="\n', "line 4", "expected > or < for a deviation"),
        (
            f'{RULE}threshold = 1\ncompare = "above"\n',
            "line 4",
            "'above': expected one of >, >=, <, <=, ==, !=",
        ),
        (f'{RULE}threshold = 1\nwindow = "2h"\n', "line 4", "seconds from 0 to 3600"),
        (f'{RULE}threshold = 1\nfor = "2x"\n', "line 4", "for of rule mine '2x': expected a number"),
        (f"{RULE}threshold = 1\nwhere = 3\n", "line 4", "labels with their values"),
        (
            '[rule.disk-full]\nwhere = { place = "cwd" }\n',
            "line 2",
            "expected one of store, stage, working directory, temporary directory, /dev/shm for place",
        ),
        (
            f'{RULE}threshold = 1\nwhere = {{ state = "x" }}\n',
            "line 4",
            "a label of spotguard_step (rank, run_id, uid)",
        ),
        (
            '[rule.mine]\nmetric = "spotguard_stalls_total"\nthreshold = 1\nof = "history"\n',
            "line 4",
            "a metric that may fall",
        ),
        (
            f'{RULE}threshold = 1\nof = "spotguard_disk_free_ratio"\n',
            "line 4",
            "a metric with the labels of spotguard_step: spotguard_step, spotguard_step_seconds",
        ),
        (
            '[rule.mine]\nmetric = "spotguard_stalls_total"\nthreshold = 1\nwindow = 5\n',
            "line 4",
            "window of rule mine 5: expected 30 s or more for a counter",
        ),
        (
            '[rule.mine]\nincident = "failure"\nwhere = { class = ["gpu", "oom"] }\n',
            "line 3",
            "where of rule mine ['gpu', 'oom']: expected one of cuda-memory, host-memory,",
        ),
        ('[rule.blind]\nwhere = { state = "blnd" }\n', "line 2", "expected one of seeing, starting, blind,"),
        (
            "[rule.steps-lost]\nwhere = { failed = 1 }\n",
            "line 2",
            "['1']: expected one of true, false for failed",
        ),
        (
            "[rule.stall]\nwhere = { rank = [] }\n",
            "line 2",
            "where of rule stall []: expected one value at least",
        ),
        (
            '[rule.stall]\nsummary = "{rnk}"\n',
            "line 2",
            "summary of rule stall '{rnk}': expected a fact of stall",
        ),
        (
            f'{RULE}threshold = 1\nsummary = "{{host}}"\n',
            "line 4",
            "value, or a label of spotguard_step (rank,",
        ),
    ],
)
def test_each_mistake_is_named_with_its_line_its_value_and_what_was_expected(
    tmp_path: Path, text: str, line: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        rules(tmp_path, text)
    said = str(caught.value)
    assert "alerts.toml" in said
    assert line in said
    assert expected in said
    assert "\n" not in said
    assert said.endswith("[SG705]")


def test_an_action_that_cannot_happen_is_told_and_refused_if_the_rule_has_no_other(tmp_path: Path) -> None:
    """The defaults name actions for whatever is given, and a rule that is switched off does nothing."""
    path = tmp_path / "alerts.toml"
    path.write_text(
        """
[rule.stall]
severity = "critical"
[rule.blind]
enabled = false
actions = ["command"]
[rule.failure]
actions = ["log", "webhook", "command"]
[rule.too-long]
actions = ["command"]
"""
    )
    assert [*idle_actions(str(path), webhook=True, command=True)] == []
    (line,) = idle_actions(str(path), webhook=False, command=True)
    told = "line 8: rule failure cannot do webhook without --webhook; its other actions happen [SG705]"
    assert line == f"{path}, {told}"
    expected = (
        r"line 10: actions of rule too-long \['command'\]: expected --on-failure too, or another action"
    )
    with pytest.raises(UsageError, match=expected):
        [*idle_actions(str(path), webhook=True, command=False)]


def test_a_copy_of_the_defaults_asks_for_no_option_more_than_they_do(tmp_path: Path) -> None:
    (copy := tmp_path / "alerts.toml").write_text(default_text())
    assert [*idle_actions(str(copy), webhook=False, command=False)] == []


def test_a_file_that_cannot_be_read_is_named_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^--rules '.*none.toml': expected a TOML file to read: No such file"
    ):
        read_rules(str(tmp_path / "none.toml"))
    (tmp_path / "bin").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="it is not UTF-8"):
        read_rules(str(tmp_path / "bin"))
