"""The end of a restore that found only damaged checkpoints: it refuses, unless the user passed `--begin-anew`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator

from ...providers.errors import AllDamagedError, NotFoundError
from ...providers.stores.base import BlobStore
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.entries import record
from ..checkpoint.format.keys import CheckpointName, anew_key
from .reads.verify import verify

log = logging.getLogger("spotguard")

#: Takes the name of a damaged checkpoint, the damage, and the keys of the damaged objects.
ReportDamage = Callable[[CheckpointName, str, Iterable[str]], object]


def unreported(name: CheckpointName, why: str, objects: Iterable[str]) -> None:
    """Report damage to nobody: the checkpoint belongs to another run, or another rank reports it."""


class DamagedCheckpoints:
    """The checkpoints of one run that a restore has found damaged.

    Args:
        allowed: `--begin-anew` was passed.
        report: called with each of them and the damage, unless `--begin-anew` has given it up before.
    """

    def __init__(
        self, store: BlobStore, run_id: str, *, allowed: bool, report: ReportDamage = unreported
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._allowed = allowed
        self._report = report
        self.found: dict[CheckpointName, str] = {}

    def add(self, name: CheckpointName, why: str, objects: Iterable[str]) -> None:
        self.found[name] = why
        self._report(name, why, objects)

    def sound(self, found: Iterator[WholeCheckpoint]) -> Iterator[WholeCheckpoint]:
        """Yield those of the given checkpoints that are not known to be damaged.

        With `--begin-anew` every byte of each is verified first. A restore that fails half-way has overwritten the registered
        objects, and training cannot begin with those.
        """
        recorded, asked = None, False
        for whole in found:
            recorded, asked = recorded if asked else self._recorded(), True
            if recorded is not None and whole.name <= recorded:
                self.found[whole.name] = "--begin-anew has already given it up"
            elif self._allowed and recorded is None and (damages := verify(self._store, whole)):
                self.add(whole.name, str(damages[0]), {each.key for each in damages})
                log.error(
                    "checkpoint %s is damaged, trying the next older one: %s [SG604]", whole.name, damages[0]
                )
            else:
                yield whole

    def forgiven(self, mixed: str) -> bool:
        """Return whether training may begin at step 0 although the run has checkpoints. The result is False if none is damaged.

        spotguard records `--begin-anew` in the store, with the newest damaged checkpoint. Damage up to that one stays forgiven,
        so that a process that crashes before its first checkpoint may start again. Later damage is not forgiven: the option is
        spent.

        Args:
            mixed: why training cannot use the state in memory; "" if it is as it was registered.

        Raises:
            AllDamagedError: training may not begin at step 0.
            StoreError: the store failed.
        """
        if not self.found:
            return False
        newest, recorded = max(self.found), self._recorded()
        if recorded is None and self._allowed and not mixed:
            text = json.dumps({"newest": str(newest), "damaged": self._named()}, indent=1)
            self._store.put(anew_key(self._run_id), memoryview(text.encode()))
            recorded = newest
        if recorded is not None and newest <= recorded and not mixed:
            log.warning(
                "every checkpoint of run %s is damaged: the run begins at step 0, as --begin-anew allows",
                self._run_id,
            )
            return True
        way = "rerun the command once with --begin-anew to begin at step 0, or choose another run id"
        if recorded is not None:
            way = (
                f"--begin-anew has already given up {recorded} and older checkpoints; choose another run "
                f"id, or delete {anew_key(self._run_id)} and rerun the command once with --begin-anew"
            )
        each = "; ".join(f"{name}: {why}" for name, why in self._named().items())
        text = f"every checkpoint of run {self._run_id} in {self._store.url} is damaged. Training was not started; {way}. {each}"
        log.error("%s", text)  # logged here: Python prints nothing for an uncaught SystemExit with a number
        raise AllDamagedError(text)

    def _named(self) -> dict[str, str]:
        return {str(name): self.found[name] for name in sorted(self.found, reverse=True)}

    def _recorded(self) -> CheckpointName | None:
        try:
            newest = record(self._store.get(anew_key(self._run_id))).get("newest")
        except NotFoundError:
            return None
        # A damaged record forgives nothing.
        return (CheckpointName.parse(newest) if isinstance(newest, str) else None) or CheckpointName(0, 0, 0)
