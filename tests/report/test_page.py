"""The page: everything of others is escaped, nothing is loaded, and what is drawn is said in words too."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from spotguard.report.facts import AttemptFacts, EventFact, RunFacts
from spotguard.report.page import page
from spotguard.report.reckoning import reckon
from tests.report.lives import FAILED, PREEMPTED, RUN, START, checkpoint, only

EVIL = """<script>alert(1)</script>&"'><img src=x onerror=alert(2)>"""


def page_of(facts: RunFacts, price: float | None = None) -> str:
    return page(reckon(facts, price), facts)


class Balanced(HTMLParser):
    """Each element that is opened is closed, in order; `words` is the text, and `ids` are the ids."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.ids: list[str] = []
        self.names: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_it_has_the_figures_and_the_attempts() -> None:
    read = Balanced(page_of(RUN, 36.0))
    words = " ".join(" ".join(read.words).split())
    for text in (
        "run: ended by itself",
        "64.5 % of the time since the first start went into steps that count; 74.1 % without 40.0 s of queueing for machines",
        "200 steps of this run count",
        "$3.50",
        "training that counts",
    ):
        assert text in words
    assert "preempted: terminate notice from aws; training again 1 min 10 s later (a, b, 4 ranks)" in words
    assert (
        "ended by an error: an error of the program (ValueError: x); training again 15.0 s later (c, 1 rank)"
        in words
    )
    assert len(set(read.ids)) == len(read.ids)


def test_the_first_figure_is_goodput() -> None:
    assert re.findall("<dt>(.*?)</dt>", page_of(RUN))[0] == "goodput (ETTR)"


def test_a_ctrl_c_has_the_sign_of_a_good_end_only_if_it_lost_nothing() -> None:
    for step, sign in ((100, "ended"), (180, "error")):
        event = EventFact("interrupted", START + 240, "", step, False)
        cut = replace(FAILED, number=1, events=(event,), checkpoints=(checkpoint(100, 220.0),))
        drawn = page_of(only(cut)).partition('<ul class="legend">')[0]
        assert [each for each in ("ended", "error") if f'class="{each}"' in drawn] == [sign]


def test_names_and_messages_of_others_are_escaped() -> None:
    event = EventFact("error", START + 240, EVIL, 160, False, id="failure-0001")
    evil = replace(FAILED, number=1, machines=(EVIL,), events=(event,))
    for facts in (replace(only(evil), run_id=EVIL), replace(RUN, store=f"s3://b/{EVIL}"), only(evil)):
        text = page_of(facts)
        read = Balanced(text)
        assert read.tags.isdisjoint({"script", "img"})
        assert "onerror" not in read.names
        assert "<script" not in text
        assert "<img" not in text
        assert EVIL in "".join(read.words) or "<script>alert(1)</script>" in "".join(read.words)


def test_failures_are_listed_with_the_way_to_dismiss_one() -> None:
    event = EventFact(
        "stall", START + 50, "training stood still: rank 1 in data", 50, True, id="stall-0001-01"
    )
    words = " ".join("".join(Balanced(page_of(only(replace(PREEMPTED, events=(event,))))).words).split())
    assert "Failures and stalls" in words
    assert "training stood still: rank 1 in data" in words
    assert "spotguard report --dismiss ID" in words
    assert "Failures and stalls" not in page_of(only(PREEMPTED))


def test_it_loads_nothing_and_runs_nothing() -> None:
    text = page_of(RUN)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert Balanced(text).names.isdisjoint({"src", "href", "onclick", "onload"})
    assert not re.search(r"url\(|@import|https?://", text)


def test_the_picture_is_said_in_words() -> None:
    """Two sizes of it, of which a style sheet shows one; each has a title and a description."""
    text = page_of(RUN)
    assert text.count('role="img"') == 2
    for part in (
        "Attempt 1 from step 0 to 100: preempted.",
        "Attempt 2 from step 100 to 160: ended by an error.",
    ):
        assert text.count(part) == 2
    assert "Attempt 3 from step 150 to 200: ended by itself." in text


def test_an_attempt_that_a_restore_left_and_one_that_left_nothing_are_on_the_page() -> None:
    left = replace(PREEMPTED, events=(EventFact("left", START + 110, "", 100),))
    idle = AttemptFacts(2, started=START + 150)
    text = page_of(only(left, idle, replace(FAILED, number=3)))
    words = " ".join("".join(Balanced(text).words).split())
    assert "Attempt 1 from step 0 to 100: left by a second restore." in words
    assert "Attempt 2: neither a checkpoint nor a record." in words
    assert "1 ended by an error, 1 left by a second restore, 1 neither a checkpoint nor a record" in words
    assert text.count('class="ended"') == text.count('class="bare"') == 3  # in two sizes, and in the legend


def test_the_line_of_an_attempt_passes_a_save_whose_checkpoint_is_deleted() -> None:
    save = EventFact("save", START + 100, "RuntimeError", 100, True, 9.0)
    error = EventFact("error", START + 110, "an error", 60, False)
    text = page_of(only(replace(PREEMPTED, checkpoints=(checkpoint(60, 70),), events=(save, error))))
    (line, _), (mark, _) = (
        re.findall(pattern, text)
        for pattern in (
            r'points="([^"]+)" class="attempt"',
            r'cx="([\d.]+)" cy="([\d.]+)" r="4" class="saved"/>\n',
        )
    )
    assert ",".join(mark) in line.split()


def test_thousands_of_checkpoints_make_a_picture_that_a_browser_can_show() -> None:
    many = tuple(checkpoint(number, 10 + number / 40) for number in range(1, 4000))
    text = page_of(only(replace(PREEMPTED, checkpoints=many)))
    assert text.count('class="checkpoint"') < 600
    assert len(text) < 100_000


def test_a_run_of_which_little_is_known_has_a_page_too() -> None:
    text = page_of(only(AttemptFacts(1, started=START), now=5))
    assert "too little of this run for a timeline" in text
    Balanced(text)
    old = AttemptFacts(1, checkpoints=(checkpoint(50, 60), checkpoint(100, 110)))
    words = "".join(Balanced(page_of(replace(RUN, attempts=(old,), history={}))).words)
    assert "estimated from the dates of checkpoints" in words


def test_a_run_that_is_down_shows_until_when_its_ettr_is_and_for_how_long_it_waits() -> None:
    words = " ".join(" ".join(Balanced(page_of(only(PREEMPTED, now=110 + 7200))).words).split())
    assert "90.9 % of the time from the first start to the last sign went into steps that count" in words
    assert "down now 2 h since the last sign: no attempt trains" in words
    assert "down now" not in page_of(RUN)
