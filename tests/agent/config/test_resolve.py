"""One table of options: a flag beats the environment, the environment beats the file, and bad values are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spotguard.agent.config.options import LAST_FAILURE, LOADER_WORKERS, NOTICE_FACTS, Options
from spotguard.agent.config.parsers import Deadline
from spotguard.agent.config.resolve import resolve, unknown_variables
from spotguard.agent.config.settings import SETTINGS, settings_of
from spotguard.agent.core.state import RecoveryAction, RecoveryRule
from spotguard.providers.errors import UsageError
from tests.cases import cases

NOTHING: Mapping[str, str] = {}

#: For each option: a text for the flag, the environment and the file, and the values they come to.
EXAMPLES: dict[str, tuple[tuple[str, object], tuple[str, object], tuple[str, object]]] = {
    "provider": (("aws", "aws"), ("none", "none"), ('"AUTO"', "auto")),
    "metadata-endpoint": (
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://[::1]:2/", "http://[::1]:2"),
        ('"http://127.0.0.3"', "http://127.0.0.3"),
    ),
    "vm-name": (("a", "a"), ("Pool-vmss_12", "Pool-vmss_12"), ('"c"', "c")),
    "acknowledge": (("true", True), ("0", False), ("true", True)),
    "store": (("file:///a", "file:///a"), ("file:///b", "file:///b"), ('"file:///c"', "file:///c")),
    "run-id": (("a", "a"), ("B-1.x_2", "B-1.x_2"), ('"c"', "c")),
    "window": (("1", 1.0), ("2.5", 2.5), ("3", 3.0)),
    "reserve": (("0", 0.0), ("2", 2.0), ("3.5", 3.5)),
    "deadline": (
        ("+3600", Deadline(after=3600.0)),
        ("1795172400", Deadline(wall=1795172400.0)),
        ("2026-11-20T11:00:00Z", Deadline(wall=1795172400.0)),  # a date of TOML's own
    ),
    "notice-file": (("/a", "/a"), ("/b", "/b"), ('"/c"', "/c")),
    "on-notice": (("logger a", "logger a"), ("b", "b"), ('"echo \\"c\\""', 'echo "c"')),
    "every": (("off", "off"), ("AUTO", "auto"), ("30", 30.0)),
    "keep": (("1", "1"), ("2+7", "2+7"), ("5", "5")),
    "stage": (("/tmp/a", "/tmp/a"), ("/tmp/b/c", "/tmp/b/c"), ('"/tmp"', "/tmp")),
    "lossy-moments": (("yes", True), ("no", False), ("true", True)),
    "extras-worth": (("0", 0), ("100", 100), ("999999999", 999_999_999)),
    "attach": (("yes", True), ("no", False), ("true", True)),
    "begin-anew": (("yes", True), ("no", False), ("true", True)),
    "verify-every": (("6", 21_600.0), ("OFF", "off"), ('"90m"', 5400.0)),
    "stall-first": (("60", 60.0), ("OFF", "off"), ("900", 900.0)),
    "socket": (("/a.sock", "/a.sock"), ("/b.sock", "/b.sock"), ('"/c.sock"', "/c.sock")),
    "signal": (("none", None), ("USR1", 10), ('"SIGUSR2"', 12)),
    "max-restarts": (("1", 1), ("2", 2), ("3", 3)),
    "recover": (
        ("gpu=leave", {"gpu": RecoveryRule(RecoveryAction.LEAVE)}),
        (
            "stall=restart:5, data=stop",
            {"stall": RecoveryRule(RecoveryAction.RESTART, 5), "data": RecoveryRule(RecoveryAction.STOP)},
        ),
        ('"killed=restart"', {"killed": RecoveryRule(RecoveryAction.RESTART, 3)}),
    ),
    "exclude-file": (("/left", "/left"), ("/b", "/b"), ('"/c"', "/c")),
    "outlive": (("true", True), ("off", False), ("true", True)),
    "exit-code": (("1", 1), ("76", 76), ("255", 255)),
    "webhook": (
        ("http://a", ("http://a",)),
        ("http://a, slack:http://b/c", ("http://a", "slack:http://b/c")),
        ('["json:https://c", "http://d:9093"]', ("json:https://c", "http://d:9093")),
    ),
    "on-failure": (("logger a", "logger a"), ("b", "b"), ('"c"', "c")),
    "metrics-port": (("1", 1), ("9464", 9464), ("65535", 65535)),
    "json-log": (("true", True), ("0", False), ("true", True)),
    "log-level": (("debug", "debug"), ("WARNING", "warning"), ('"error"', "error")),
}


def file_with(folder: Path, text: str) -> dict[str, str]:
    path = folder / "spot.toml"
    path.write_text(text)
    return {"config": str(path)}


def refusal(flags: Mapping[str, str], env: Mapping[str, str] = NOTHING, command: str = "run") -> str:
    with pytest.raises(UsageError) as caught:
        resolve(command, flags, env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_option_has_its_example() -> None:
    assert EXAMPLES.keys() == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path, name: str) -> None:
    (flag, said), (variable, exported), (key, written) = EXAMPLES[name]
    setting = next(setting for setting in SETTINGS if setting.name == name)
    in_file = file_with(tmp_path, f"{name} = {key}\n")
    env = {setting.variable: variable}

    def value(flags: Mapping[str, str], env: Mapping[str, str] = NOTHING) -> object:
        return getattr(resolve("run", flags, env), setting.field)

    assert value({}) == setting.default or name in ("store", "run-id")
    assert value(in_file) == written
    assert value(in_file, env) == exported
    assert value({**in_file, name: flag}, env) == said


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """And a flag names another one in its place."""
    other = tmp_path / "other.toml"
    other.write_text("keep = 9\n")
    env = {"SPOTGUARD_CONFIG": file_with(tmp_path, "keep = 7\n")["config"]}
    assert resolve("run", {}, env).keep == "7"
    assert resolve("run", {"config": str(other)}, env).keep == "9"


def test_keys_are_written_as_flags_or_as_names(tmp_path: Path) -> None:
    assert resolve("run", file_with(tmp_path, "max_restarts = 2\n"), NOTHING).max_restarts == 2
    both = refusal(file_with(tmp_path, "max-restarts = 2\nmax_restarts = 3\n"))
    assert "given twice" in both


def test_a_variable_that_is_empty_is_not_set() -> None:
    assert resolve("run", {}, {"SPOTGUARD_WINDOW": ""}).window is None


def test_defaults_that_depend_on_the_command() -> None:
    """The store's default is marked as nobody's choice."""
    defaults = {"store": "file:///here", "run-id": "train-1"}
    found = resolve("run", {}, NOTHING, defaults=defaults)
    assert (found.store, found.run_id, found.store_given) == ("file:///here", "train-1", False)
    assert resolve("run", {"store": "file:///x"}, NOTHING, defaults=defaults).store_given


def test_the_service_has_no_command_to_end() -> None:
    """Options that are about a command are no flags of `agent`, and harm it neither in a shared file."""
    names = {setting.name for setting in settings_of("agent")}
    assert names == {
        "provider", "metadata-endpoint", "vm-name", "acknowledge", "window", "reserve", "deadline", "notice-file", "on-notice", "socket",
        "metrics-port", "json-log", "log-level", "stall-first", "webhook", "on-failure",
    }  # fmt: skip
    assert isinstance(resolve("agent", {}, {"SPOTGUARD_KEEP": "no number"}), Options)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("provider", "digitalocean", "auto, aws, azure, gcp or none"),
        ("metadata-endpoint", "localhost:80", "http://127.0.0.1:1338"),
        ("vm-name", "two words", "as in pool-vmss_12"),
        ("vm-name", "x" * 129, "as in pool-vmss_12"),
        ("store", " ", "a path, or a store's URL, as in s3://bucket/prefix"),
        ("run-id", "a/b", "letters"),
        ("run-id", "..", "letters"),
        ("run-id", "x" * 65, "64"),
        ("window", "2x", "as in 30 or 2m"),
        ("every", "0m", "as in 60 or 5m"),
        ("window", "-1", "from 0 up"),
        ("window", "nan", "as in 30"),
        ("window", "inf", "as in 30"),
        ("window", "1e11", "604800 (a week)"),
        ("reserve", "604801", "604800 (a week)"),
        ("deadline", "tomorrow", "as in 2035-06-30T18:00"),
        ("deadline", "18:00", "from now +3600"),
        ("notice-file", "a\0b", "path"),
        ("on-notice", " ", "a command for the shell"),
        ("every", "1e11", "604800 (a week)"),
        ("every", "0", "auto, off"),
        ("every", "often", "auto, off"),
        ("keep", "0", "from 1 up"),
        ("keep", "2.5", "whole number"),
        ("socket", "a\0b", "path"),
        ("signal", "KILL", "TERM"),
        ("signal", "SIGNONE", "TERM"),
        ("max-restarts", "-1", "from 0 up"),
        ("recover", ",", "CLASS=ACTION, as in stall=restart"),
        ("recover", "hang=restart", "a class of failures before each =, not 'hang': cuda-memory, "),
        ("recover", "stall=reboot", "restart, restart:N, leave, leave:N or stop behind stall=, not 'reboot'"),
        ("recover", "stall=stop:3", "restart, restart:N, leave, leave:N or stop behind stall=, not 'stop:3'"),
        (
            "recover",
            "gpu=back",
            "back behind nan= only, as in nan=back, not 'gpu=back'",
        ),
        ("recover", "gpu=leave:x", "a whole number from 1 up behind gpu=leave:, not 'x'"),
        ("recover", "gpu=stop,stall=stop,gpu=leave", "each class once, not gpu twice"),
        ("recover", "stall=restart:0", "a whole number from 1 up behind stall=restart:, not '0'"),
        ("outlive", "maybe", "true or false"),
        ("exit-code", "0", "done"),
        ("exit-code", "256", "255"),
        ("metrics-port", "0", "as in 9464"),
        ("metrics-port", "65536", "from 1 to 65535"),
        ("metrics-port", ":9464", "a whole number"),
        ("log-level", "loud", "debug"),
    ],
)
def test_a_bad_value_names_its_origin(tmp_path: Path, name: str, text: str, expected: str) -> None:
    """From each of the three places: where, the value, and what was expected."""
    setting = next(setting for setting in SETTINGS if setting.name == name)
    quoted = text.replace("\0", "\\u0000")
    in_file = file_with(tmp_path, f'{name} = "{quoted}"\n')
    for origin, line in (
        (setting.flag, refusal({name: text})),
        *([(setting.variable, refusal({}, {setting.variable: text}))] if text.strip() else ()),
        (f"{in_file['config']}: {name}", refusal(in_file)),
    ):
        assert line.startswith(f"{origin} {text!r}: expected")
        assert expected in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("windw = 30\n", "unknown key 'windw': did you mean window?"),
        ("xyzzy = 1\n", "expected provider, metadata-endpoint"),
        ("[run]\nkeep = 3\n", "unknown key 'run'"),
        ("keep = [3]\n", "not a list"),
        ("keep = {a = 3}\n", "not a table"),
        ("keep = 2026-01-01\n", "not a date"),
        ("keep = \n", "expected TOML"),
        ("keep = true\n", "whole number"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """A key that nobody reads would be an option that silently is not set."""
    line = refusal(file_with(tmp_path, content))
    assert "spot.toml" in line
    assert words in line


def test_a_variable_that_no_option_has_is_named() -> None:
    """With the nearest one; what others set, and what is empty or of ours, is no stranger."""
    env = {"SPOTGUARD_WINDWO": "5", "SPOTGUARD_XYZZY": "1", "SPOTGUARD_KEEP": "3", "PATH": "/bin"}
    names = (
        "SPOTGUARD_CONFIG",
        "SPOTGUARD_DEBUG",
        "SPOTGUARD_PARENT",
        *NOTICE_FACTS,
        LAST_FAILURE,
        LOADER_WORKERS,
    )
    ours = dict.fromkeys(names, "1")
    assert unknown_variables({**env, **ours}) == [
        "SPOTGUARD_WINDWO: did you mean SPOTGUARD_WINDOW?",
        "SPOTGUARD_XYZZY: see spotguard run --help",
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.toml")
    assert refusal({"config": missing}).startswith(f"--config '{missing}': expected a file")
    assert refusal({}, {"SPOTGUARD_CONFIG": missing}).startswith(f"SPOTGUARD_CONFIG '{missing}'")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\0")
    assert "expected TOML" in refusal({"config": str(binary)})


def test_a_stage_is_a_folder_that_is_there_or_can_be_made(tmp_path: Path) -> None:
    """Only looked at: the training process makes it."""
    (tmp_path / "file").write_text("")
    assert resolve("run", {"stage": str(tmp_path / "a" / "b")}, NOTHING).stage == str(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    for text in (str(tmp_path / "file"), str(tmp_path / "file" / "stage"), ""):
        assert "expected a directory that exists or can be made" in refusal({"stage": text})


@cases("text, value", [("90", 90), ("90s", 90), ("5m", 300), ("2h30m", 9000), ("1.5min", 90), ("500ms", 0.5)])
def test_seconds_may_be_a_duration(text: str, value: float) -> None:
    """In a flag, in the environment, and for each option that takes seconds."""
    for name in ("window", "reserve", "every"):
        assert getattr(resolve("run", {name: text}, NOTHING), name) == value
        assert getattr(resolve("run", {}, {f"SPOTGUARD_{name.upper()}": text}), name) == value


def test_a_duration_may_stand_in_the_file(tmp_path: Path) -> None:
    assert resolve("run", file_with(tmp_path, 'every = "5m"\nwindow = 30\n'), NOTHING).every == 300


def test_a_plain_path_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute from here on, because the command may run in another directory."""
    monkeypatch.chdir(tmp_path)
    assert resolve("run", {"store": "checkpoints"}, NOTHING).store == (tmp_path / "checkpoints").as_uri()
    assert resolve("run", {"store": "/mnt/a b"}, NOTHING).store == "file:///mnt/a%20b"
    assert resolve("run", {}, {"SPOTGUARD_STORE": "./c"}).store == (tmp_path / "c").as_uri()
    assert resolve("run", {"store": "s3://bucket/prefix"}, NOTHING).store == "s3://bucket/prefix"
    assert (
        resolve("run", {"store": "s3:/bucket"}, NOTHING).store == "s3:/bucket"
    )  # refused where stores are known


@pytest.mark.parametrize("text", ["", "/", "/no/such/folder/exclude.txt"])
def test_a_file_that_nobody_can_append_to_is_refused_before_anything_starts(text: str) -> None:
    assert "expected a " in refusal({"exclude-file": text})


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/secret", "http://h:x/secret", "http://h:0/secret"])
def test_a_webhook_whose_port_is_none_is_refused_for_its_port(url: str) -> None:
    said = refusal({"webhook": url})
    assert "expected a port from 1 to 65535" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    "text",
    [
        "ftp://h/x",
        "pager:https://h",
        "https://",
        " , ",
        "hooks.slack.com/services/T0/B0/secret",
    ],
)
def test_a_webhook_that_is_no_url_is_refused_without_its_secret(text: str) -> None:
    said = refusal({"webhook": text})
    assert said.startswith("--webhook ")
    assert "expected a URL, as in http://127.0.0.1:9093" in said
    assert "secret" not in said
