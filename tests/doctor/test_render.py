"""The page: 80 columns, nothing cut, nothing said by colours alone."""

from __future__ import annotations

from spotguard.doctor import render
from spotguard.doctor.finding import Finding, fails, ok, warning

COMMAND = "aws ec2 modify-instance-metadata-options --instance-id i-0123456789abcdef0"


def shown(finding: Finding, width: int | None = 80) -> list[str]:
    return [words for words, _ in render.lines(finding, width)]


def test_a_failing_line_says_so_without_colours_and_what_to_do() -> None:
    lines = shown(fails("notices", "BLIND (hop-limit): " + "aws spot/instance-action " * 4, COMMAND))
    assert lines[0].startswith("  FAILS    notices      BLIND (hop-limit): aws")
    assert lines[-2:] == [
        "           what to do   aws ec2 modify-instance-metadata-options --instance-id",
        "                        i-0123456789abcdef0",
    ]
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_a_pipe_gets_whole_lines() -> None:
    lines = shown(warning("agent", "a " * 100, COMMAND), None)
    assert lines == ["  warning  agent        " + ("a " * 100).rstrip(), f"           what to do   {COMMAND}"]


def test_a_word_that_cannot_be_cut_stays_whole() -> None:
    url = "https://" + "x" * 90
    assert any(line.strip() == url for line in shown(ok("store", f"at {url}")))


def test_the_last_line_is_the_answer() -> None:
    verdict = ok("verdict", "fits", fits=True)
    assert render.last([verdict])[0] == "This machine would save in time"
    assert render.last([warning("job", "x"), verdict])[0] == "This machine would save in time (1 warning)"
    failing = [fails("notices", "x"), fails("notices", "y"), fails("put", "z"), verdict]
    assert render.last(failing)[0] == "This machine would NOT save in time: notices, put"
    assert "not known yet" in render.last([ok("verdict", "x", fits=None)])[0]
