"""A line for a person is read without any logging set up, and is as quiet as whoever has set it up says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
TELLS = "import logging\n{}\nfrom spotguard.hooks.restore.startup import tell\ntell('run r is at step 3', aloud={})\n"


def said(setting: str, aloud: bool = True) -> str:
    """In a process of its own: pytest has set logging up in this one."""
    done = subprocess.run(
        [sys.executable, "-c", TELLS.format(setting, aloud)],
        capture_output=True,
        text=True,
        cwd=ROOT / "packaging",
        check=True,
        timeout=100,
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "logging.getLogger('spotguard').setLevel('INFO')",  # and no handler that would show it
    ],
)
def test_where_nothing_is_set_up_it_is_shown_once(setting: str) -> None:
    assert said(setting) == "spotguard: run r is at step 3\n"


def test_who_shows_it_elsewhere_has_it_logged_only() -> None:
    assert said("", aloud=False) == ""


@pytest.mark.parametrize(
    "setting",
    [
        "logging.basicConfig()",
        "logging.getLogger('spotguard').addHandler(logging.NullHandler())",
        "logging.getLogger('spotguard').setLevel('WARNING')",
        "logging.getLogger().setLevel('ERROR')",
        "logging.disable()",
        "logging.lastResort = None",
        "import sys; sys.stderr = None",
    ],
)
def test_who_has_said_what_is_shown_is_shown_no_more(setting: str) -> None:
    assert said(setting) == ""


def test_a_script_that_logs_has_it_in_its_own_way() -> None:
    setting = "logging.basicConfig(level='INFO', format='%(levelname)s %(name)s: %(message)s')"
    assert said(setting) == "INFO spotguard: run r is at step 3\n"
