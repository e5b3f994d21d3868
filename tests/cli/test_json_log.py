"""The lines of --json-log are documents as Elasticsearch wants them, taken by the input that is shipped for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]

#: Fields of the Elastic Common Schema, and what their values are in JSON (elastic.co/guide/en/ecs, ECS field reference).
ECS: Mapping[str, type] = {
    "@timestamp": str,
    "log.level": str,
    "log.logger": str,
    "message": str,
    "ecs.version": str,
    "process.pid": int,
    "service.name": str,
    "error.type": str,
    "error.message": str,
    "error.stack_trace": str,
}

#: Two drills, one of which is not saved, and a notice that ends the run.
HOOK = """
import os, signal, subprocess, sys, time
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
path = Path(os.environ["SPOTGUARD_SOCKET"])
hook = FakeHook(path)
hook.say(Register(os.getpid(), "r", "train.py", "file:///s", nbytes=1000))
hook.hear(Welcome)
def drilled(answer):
    asker = FakeHook(path, Role.ANSWERER)
    asker.say(Ask("drill", 60.0))
    notice = hook.hear(Preempt)
    hook.say(Delivered(notice.id, time.monotonic()), answer(notice.id))
    hook.hear(Resume)
    asker.close()
commit = lambda id: Committed(id, 8, 1000, 0.5, "file:///s/8", time.monotonic())
drilled(lambda id: Failed(id, "the store is full"))
drilled(commit)
os.kill(os.getppid(), signal.SIGTERM)
hook.say(commit(hook.hear(Preempt).id))
sys.exit(hook.hear(Leave).code)
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a run writes on stderr, whose command writes there too."""
    folder = tmp_path_factory.mktemp("run")
    program = "import sys; print('no JSON: a line of the command', file=sys.stderr)\n" + HOOK.format(
        root=str(ROOT)
    )
    words = f"-m spotguard run --json-log --provider none --run-id r --store {folder.as_uri()}".split()
    runtime = Path(os.environ["XDG_RUNTIME_DIR"], f"t{os.urandom(4).hex()}")
    done = subprocess.run(
        [sys.executable, *words, "--socket", str(runtime / "r.sock"), "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 75, done.stderr
    return done.stderr.splitlines()


def inputs() -> dict[str, dict[str, Any]]:
    config = yaml.safe_load((files("spotguard.deploy") / "template-files" / "filebeat.yml").read_text())
    return {each["id"]: each for each in config["filebeat.inputs"]}


def expanded(value: Any) -> Any:
    """`expand_keys`: "a.b" is b in a; what is said twice, once as an object and once as a word, is refused."""
    if isinstance(value, list):
        return [expanded(one) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, one in value.items():
        *above, last = key.split(".")
        place = found
        for name in above:
            place = place.setdefault(name, {})
            assert isinstance(place, dict), f"{key}: {name} is no object"
        assert last not in place, f"{key} is said twice"
        place[last] = expanded(one)
    return found


def taken(line: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The event that Filebeat makes of a line by its ndjson parser, or by decode_json_fields."""
    event: dict[str, Any] = {"@timestamp": "when it was read", "message": line, "host": {"name": "node-1"}}
    try:
        body = json.loads(line)
    except ValueError:
        return event
    assert isinstance(body, dict)
    assert options["target"] == ""
    assert options["expand_keys"]
    for key, value in expanded(body).items():
        if options["overwrite_keys"] or key not in event:
            event[key] = value
    return event


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its whole name, as Elasticsearch indexes it: a list is each of its parts."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one, path)
    elif value is not None:
        yield path, value


@pytest.mark.parametrize("name", ["spotguard-runs", "spotguard-units"])
def test_a_line_becomes_a_document_as_it_is(lines: list[str], name: str) -> None:
    """With its own time in place of when it was read, and its text as the message."""
    one = inputs()[name]
    options = one["parsers"][0]["ndjson"] if "parsers" in one else one["processors"][0]["decode_json_fields"]
    events = [taken(line, options) for line in lines]
    ours = [event for event in events if "service" in event]
    assert len(ours) >= len(lines) - 1
    for event in ours:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["@timestamp"])
        assert event["log"]["level"] in ("info", "warning", "error")
        assert not event["message"].startswith("{")
        assert event["host"] == {"name": "node-1"}  # what Filebeat knows stays
    records = [event["spotguard"]["outcome"] for event in ours if "spotguard" in event]
    assert [(record["kind"], record["committed"] is not None) for record in records] == [
        ("drill", False),
        ("drill", True),
        ("signal", True),
    ]


def test_output_of_the_command_stays_a_line_of_text(lines: list[str]) -> None:
    options = inputs()["spotguard-runs"]["parsers"][0]["ndjson"]
    assert options["ignore_decoding_error"]
    (line,) = [line for line in lines if "no JSON" in line]
    assert taken(line, options)["message"] == "no JSON: a line of the command"


def test_every_field_is_the_schemas_or_below_our_own_name(lines: list[str]) -> None:
    """And of one type in all lines: Elasticsearch refuses a document that says another."""
    types: dict[str, set[type]] = {}
    for line in lines:
        if line.startswith("{"):
            for path, value in leaves(json.loads(line)):
                types.setdefault(path, set()).add(type(value))
    assert {path for path in types if not path.startswith("spotguard.")} <= set(ECS)
    for path, found in types.items():
        assert len(found) == 1, f"{path}: {found}"
        assert path not in ECS or found == {ECS[path]}, path
