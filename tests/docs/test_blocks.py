"""What the pages show is what happens: every command and every script in them is tried."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import snippets
from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.terminal import TIMEOUT, Terminal, follows

LANGUAGES = ("console", "python", "toml", "json", "yaml", "diff", "text", "")

README = ROOT / "README.md"


def _typed(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "console" and "not run" not in block.notes]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.ends()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)  # the tutorial takes 90 s on two cores that do nothing else
@pytest.mark.parametrize("page", sorted(filter(_typed, pages())), ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_as_it_shows(page: Path, terminal: Terminal) -> None:
    """The commands of one page in their order, in one folder."""
    pytest.importorskip("torch")
    shutil.copy(Path(__file__).parent / "programs" / "train.py", terminal.folder)
    for block in blocks(page):
        if "file" in block.notes:
            (terminal.folder / block.notes["file"]).write_text(block.text)
    for block in _typed(page):
        _type(block, terminal)


def _type(block: Block, terminal: Terminal) -> None:
    if "alone" in block.notes:
        terminal.ends()
    if "beside" in block.notes:
        terminal.trains(block.notes["beside"])
    typed = list(block.typed())
    assert typed, f"{block.page}:{block.line} has no command"
    for (command, expected), after in zip(typed, [*typed[1:], ("", [])], strict=True):
        where = f"{block.page}:{block.line}: {command}"
        if command.endswith(" &") or expected[-1:] == ["^C"]:
            shown = [line for line in expected if line != "^C"]
            terminal.leaves(command.removesuffix(" &"), shown, block.notes.pop("meanwhile", ""))
            continue
        code, said = terminal.types(command, block.notes.pop("meanwhile", ""))
        assert code == 0 or after[0] == "echo $?", f"{where}: exit code {code}:\n{said}"
        assert follows(expected, said), f"{where}: expected\n{chr(10).join(expected)}\nin\n{said}"


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_every_snippet_runs(terminal: Terminal) -> None:
    """Each by itself, behind what its page shares; all in one process, which loads torch once."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, snippets.__file__],
        input=json.dumps([*_changed(), *[each for page in pages() for each in _alone(page)]]),
        capture_output=True,
        text=True,
        cwd=terminal.folder,
        env=terminal.env,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _alone(page: Path) -> Iterator[tuple[str, str]]:
    found = [block for block in blocks(page) if block.language == "python"]
    shared = "".join(block.text + "\n" for block in found if "shared" in block.notes)
    for block in found:
        if not {"shared", "file", "not run"} & block.notes.keys():
            yield f"{block.page}:{block.line}", shared + block.text


def _changed() -> Iterator[tuple[str, str]]:
    """The README's script after its change, behind what another page shares: a model, an optimizer and a dataset."""
    (change,) = [block for block in blocks(README) if block.language == "diff"]
    page = ROOT / "docs" / "explanation" / "other-state.md"
    (shared,) = [block.text for block in blocks(page) if "shared" in block.notes]
    lines = [line[1:] for line in change.text.splitlines() if not line.startswith("-")]
    yield f"{change.page}:{change.line}", "\n".join([shared, "epochs = 2", *lines])


def test_a_block_that_is_not_run_says_why() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{block.page}:{block.line}: {block.language}"
            if "not run" in block.notes:
                assert len(block.notes["not run"]) > 10, f"{block.page}:{block.line} does not say why"


def test_the_readme_is_short_and_comes_to_a_command_soon() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 100
    before = re.sub(r"<!--.*?-->|!\[.*?\]\(.*?\)", "", text.partition("```console")[0])
    assert len(before.split()) <= 80
