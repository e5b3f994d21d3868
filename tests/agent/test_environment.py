"""What a command is given, and what a `spotguard` inside it does not take for its own."""

from __future__ import annotations

from pathlib import Path

from spotguard.agent.app import exported
from spotguard.agent.config.options import PARENT
from spotguard.agent.config.resolve import resolve, without_parent

OUTER = resolve("run", {"run-id": "outer", "store": "file:///s", "keep": "9"}, {})
INSIDE = exported(OUTER, Path("/run/outer.sock"), {"PATH": "/bin"})


def test_a_run_inside_a_run_has_its_own_socket_and_name() -> None:
    """Those around it are taken; the store and the cadence may well be the same."""
    inner = resolve("run", {}, INSIDE, defaults={"run-id": "inner", "store": "file:///other"})
    assert (inner.socket, inner.run_id) == (None, "inner")
    assert (inner.store, inner.keep) == ("file:///s", "9")


def test_variables_set_inside_the_run_win() -> None:
    """A script that names its inner run is obeyed."""
    env = {**INSIDE, "SPOTGUARD_RUN_ID": "chosen", "SPOTGUARD_SOCKET": "/run/chosen.sock"}
    inner = resolve("run", {}, env)
    assert (inner.socket, inner.run_id) == ("/run/chosen.sock", "chosen")


def test_a_stage_goes_to_the_command_where_there_is_one() -> None:
    staged = resolve("run", {"stage": "/tmp"}, {})
    assert exported(staged, Path("/run/a.sock"), {})["SPOTGUARD_STAGE"] == "/tmp"
    assert "SPOTGUARD_STAGE" not in INSIDE


def test_the_worth_of_extras_is_exported_to_the_command() -> None:
    """0 is a price too."""
    priced = resolve("run", {"extras-worth": "0"}, {})
    assert exported(priced, Path("/run/a.sock"), {})["SPOTGUARD_EXTRAS_WORTH"] == "0"
    assert INSIDE["SPOTGUARD_EXTRAS_WORTH"] == "100"


def test_the_innermost_run_is_the_parent() -> None:
    """The mark is made anew by each."""
    inner = resolve("run", {"run-id": "inner"}, INSIDE)
    assert exported(inner, Path("/run/inner.sock"), INSIDE)[PARENT] == "inner:/run/inner.sock"


def test_without_a_parent_nothing_is_left_out() -> None:
    env = {"SPOTGUARD_RUN_ID": "a", "SPOTGUARD_SOCKET": "", "PATH": "/bin"}
    assert without_parent(env) == env


def test_a_run_inside_a_run_does_not_ask_for_the_outer_one_s_port() -> None:
    """One port has one endpoint; which one the inner run gets is for the script to say."""
    inside = exported(OUTER, Path("/run/outer.sock"), {"SPOTGUARD_METRICS_PORT": "9464"})
    assert resolve("run", {}, inside).metrics_port is None
    assert resolve("run", {}, {**inside, "SPOTGUARD_METRICS_PORT": "9465"}).metrics_port == 9465
