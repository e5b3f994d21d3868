"""A line for a person is read without any logging set up, and is as quiet as whoever has set it up says."""

from __future__ import annotations

import pytest

from tests.fakes.printed import printed

pytestmark = pytest.mark.torch

TELLS = "import logging\n{}\nfrom spotguard.hooks.restore.startup import tell\ntell('run r is at step 3', aloud={})\n"
#: What is set up, whether the line is told aloud, and what is printed.
SETTINGS = [
    ("", True, "spotguard: run r is at step 3\n"),
    # No handler would show it.
    ("logging.getLogger('spotguard').setLevel('INFO')", True, "spotguard: run r is at step 3\n"),
    # It is shown elsewhere, and logged only.
    ("", False, ""),
    # The script has said what is shown.
    ("logging.basicConfig()", True, ""),
    ("logging.getLogger('spotguard').addHandler(logging.NullHandler())", True, ""),
    ("logging.getLogger('spotguard').setLevel('WARNING')", True, ""),
    ("logging.getLogger().setLevel('ERROR')", True, ""),
    ("logging.disable()", True, ""),
    ("logging.lastResort = None", True, ""),
    ("import sys; sys.stderr = None", True, ""),
    # A script that logs has it in its own way.
    (
        "logging.basicConfig(level='INFO', format='%(levelname)s %(name)s: %(message)s')",
        True,
        "INFO spotguard: run r is at step 3\n",
    ),
]


def test_line_is_printed_once_unless_the_script_has_set_up_logging() -> None:
    said = printed([TELLS.format(setting, aloud) for setting, aloud, _ in SETTINGS])
    shown = [(*row[:2], line) for row, line in zip(SETTINGS, said, strict=True)]
    assert shown == SETTINGS
