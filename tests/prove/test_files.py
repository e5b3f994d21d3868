"""Files that two runs share."""

from __future__ import annotations

import json
from pathlib import Path

from spotguard.prove.record import OpenedFiles, leaks, read_files, together


def test_a_file_written_by_one_run_and_read_by_another_is_shared() -> None:
    writes, reads = (
        OpenedFiles({"/cache/x": ["write"]}),
        OpenedFiles({"/cache/x": ["read"], "/data/y": ["read"]}),
    )
    assert leaks([writes, reads]) == ["/cache/x"]
    assert leaks([reads, writes]) == ["/cache/x"], "whichever came first"


def test_a_file_written_before_it_is_read_is_not_shared() -> None:
    each = OpenedFiles({"/tmp/scratch": ["write", "read"]})
    assert leaks([each, each]) == []


def test_a_database_that_is_updated_is_shared_and_a_log_that_grows_is_not() -> None:
    each = [OpenedFiles({"/home/runs.db": ["update"], "/home/log.txt": ["append"]}) for _ in range(2)]
    assert leaks(each) == ["/home/runs.db"]


def test_the_lives_of_one_series_may_share() -> None:
    one = together([OpenedFiles({"/home/state": ["write"]}), OpenedFiles({"/home/state": ["read"]})])
    assert leaks([one]) == []
    assert leaks([one, OpenedFiles({"/home/other": ["read"]})]) == []


def test_files_are_told_by_where_they_lie(tmp_path: Path) -> None:
    found = OpenedFiles(
        {f"{tmp_path}/work/a": ["read"], "/root/.cache/matplotlib/fontlist": ["write"], "/data/b": ["read"]}
    )
    assert found.within(tmp_path).ways == {"work/a": ["read"]}
    assert found.outside(tmp_path).ways == {"/data/b": ["read"]}, (
        "what libraries make for themselves does not count"
    )


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps(["read", "/data/a"]), json.dumps(["thread", "train.py:3"]), '["write", "/da']
    (tmp_path / "files-7.jsonl").write_text("\n".join(lines))
    found = read_files(tmp_path)
    assert (dict(found.ways), found.threads) == ({"/data/a": ["read"]}, ["train.py:3"])
