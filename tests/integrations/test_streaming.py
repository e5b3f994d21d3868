"""Loops over streaming datasets: cut anywhere, they end as ones that never were, or are refused, or warn."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import Training, differences

# A life imports datasets or streaming, and these pandas, pyarrow and transformers.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

#: In the first pass, at its end, before the first batch of the next life, and in the second pass.
EVENTS = ("step:5", "kill:12", "again:12", "step:17")

EXACT = [
    ("datasets-alone", 0),
    ("datasets-stateful", 0),
    ("datasets-stateful", 1),
    ("datasets-stateful", 2),
    ("datasets-alone-buffer", 0),
    ("datasets-stateful-buffer", 0),
    ("datasets-resumable-buffer", 0),
    ("datasets-resumable-buffer", 2),
    ("mosaic-resumable", 0),
    ("mosaic-resumable", 2),
    ("webdataset-seeded", 0),
    ("webdataset-seeded", 2),
    ("webdataset-counted", 2),
]


class Stream(Training):
    """A training with a number of workers."""

    def __init__(self, case: str, workers: int, folder: Path) -> None:
        super().__init__("streaming", "streams.py", case, folder)
        self._case_words = [str(workers)]
        self.said = ""

    def run(self, out: str, *more: str):  # type: ignore[no-untyped-def]
        done = super().run(out, *self._case_words, *more)
        self.said += done.stderr
        return done


@pytest.mark.parametrize(("case", "workers"), EXACT)
def test_a_loop_that_is_cut_ends_as_one_that_never_was(case: str, workers: int, tmp_path: Path) -> None:
    training = Stream(case, workers, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut(*EVENTS)
    assert differences(plain, resumed) == []
    assert lives == len(EVENTS) + 1
    assert "SG420" not in training.said


@pytest.mark.parametrize(("case", "workers"), [("webdataset-plain", 0), ("webdataset-counted", 0)])
def test_a_dataset_that_begins_otherwise_after_a_restart_is_said(
    case: str, workers: int, tmp_path: Path
) -> None:
    """A shuffle without a seed, and one whose seed counts passes in the process."""
    training = Stream(case, workers, tmp_path)
    _, lives = training.cut("step:17")
    assert lives == 2
    assert "the loader's first 5 batches are not those of before the restart" in training.said


REFUSED = [("mosaic-alone", "StreamingDataLoader"), ("mosaic-dataset", "StreamingDataset")]


@pytest.mark.parametrize(("case", "kind"), REFUSED)
def test_streams_without_a_wrapper_are_refused_at_register(case: str, kind: str, tmp_path: Path) -> None:
    done = Stream(case, 0, tmp_path).run("out", str(tmp_path / "store"))
    assert done.returncode == 1
    assert f"loader is a {kind}" in done.stderr
    assert not (tmp_path / "out").exists()
