"""Public reports of resumed runs that were other runs, each with a script of its shape that is adopted as the pages teach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import spotguard
from tests.fakes.passes import WIDTH, Loop, Script, said, unequal


def batch() -> torch.Tensor:
    return torch.randn(4, WIDTH)


def epochs(loop: Loop, loader: Any, passes: int = 3, **values: Any) -> None:
    """Train on the passes of a loader."""
    loader = loop.wrap(loader)
    loop.restore(loader=loader, **values)
    for _ in range(loader.epoch, passes):
        for batch in loader:
            loop.learn(batch)


@dataclass(frozen=True)
class Report:
    """A row of the table.

    Attributes:
        where: the repository and the number of the report.
        script: a training of the report's shape; its docstring tells what happens there.
        says: what has to be logged or raised; nothing for a run that is exact.
        cuts: the steps at which a life ends.
        twice: cut the second life too.
        remark: what an exact run logs all the same.
        silent: why the run is another one without a word, which is a defect.
    """

    where: str
    script: Script
    says: str = ""
    cuts: tuple[int, ...] = (3, 6)
    twice: bool = False
    remark: str = ""
    silent: str = ""

    def check(self, caplog: pytest.LogCaptureFixture) -> None:
        """Assert the verdict: exact without a word, or another run with its message."""
        raised, other = "", list[int]()
        try:
            other = unequal(self.script, self.cuts, self.twice)
        except (spotguard.SpotguardError, ValueError) as error:
            raised = str(error) or repr(error)
        lines = [*said(caplog), *[raised] * bool(raised)]
        if self.says:
            assert any(self.says in line for line in lines), (other, lines)
            assert raised or other, lines
        else:
            assert (other, [line for line in lines if not self.remark or self.remark not in line]) == ([], [])


class Table(dict[str, Report]):
    """Reports by the names of their scripts."""

    def report(self, where: str, says: str = "", **how: Any) -> Callable[[Script], Script]:
        """Enter the script that follows."""

        def enter(script: Script) -> Script:
            self[getattr(script, "__name__", "")] = Report(where, script, says, **how)
            return script

        return enter

    def rows(self) -> list[Any]:
        """Rows for `parametrize`; a defect is expected to fail."""
        return [
            pytest.param(
                report,
                id=name,
                marks=[pytest.mark.xfail(reason=report.silent, raises=AssertionError, strict=True)]
                * bool(report.silent),
            )
            for name, report in self.items()
        ]
