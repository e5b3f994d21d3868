"""The start of an attempt: claim its number, then load the checkpoint that training goes on from.

If the store fails for a moment, spotguard asks again: it neither takes an older checkpoint nor begins at step 0 for that. In a
job of several ranks the first rank asks, for all.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ...providers.clock import Clock
from ...providers.errors import NotFoundError
from ...providers.redaction import redacted
from ...providers.stores.base import BlobStore
from ..arguments.settings import Settings, agent_socket, launch
from ..arguments.speaker import is_set_up
from ..checkpoint.attempts import attempt_record, claim_attempt, newest_claim
from ..checkpoint.format.entries import record
from ..checkpoint.format.keys import failures_prefix, outcomes_prefix
from ..checkpoint.local_stage import Stage
from ..checkpoint.store_probe import probe
from ..consensus.channel import Channel
from ..consensus.collective_results import result_of_first_rank, results_of_all_ranks
from ..consensus.shared_names import refuse_namesakes
from ..consensus.topology import booted, machine_names, this_machine
from ..ipc.failure_classes import (
    CLASSES,
    FAILURES,
    LEAVES_FOR_STALL,
    counts_of,
    larger_counts,
)
from ..ipc.threads import side_by_side
from ..state.state import State
from .begin_anew import ReportDamage, unreported
from .collective import restore_together, see_the_same
from .proof_file import command, is_exact, is_verdict, versions
from .restore import CheckpointChoice, Restored, restore, say_what_stays_behind
from .retrying_store import RetryingStore
from .saves_in_flight import SavesInFlight

_T = TypeVar("_T", int, str)


class Startup:
    """The start of one run's attempt. The training thread calls it.

    Args:
        channel: this rank's channel to the other ranks; None in a job of one process.
        proof: the verdict of `spotguard prove` about this code, for the attempt's record.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        clock: Clock,
        channel: Channel | None,
        proof: str = "",
        settings: Settings | None = None,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._clock = clock
        self._channel = channel
        self._proof = proof
        self._settings = settings = settings or Settings.of(run_id=run_id)
        #: This run's stage on this machine; None if it has none.
        self.stage: Stage | None = None
        #: How often each class of failure has ended this run, by all agents and the store. Empty if no agent has a rule.
        self.failures: dict[str, int] = {}
        #: The fingerprints and steps of the errors at which the attempt before left its machine: its agent is gone.
        self.errors: frozenset[tuple[str, int]] = frozenset()
        #: The first step behind the data that made values wrong; 0 for none.
        self.skip_until = settings.skip_until

    def meet(self, state: State) -> None:
        """Check that all ranks name the same run and store, and that each name means one tensor on all of them.

        Raises:
            UsageError: two ranks have different values.
            StateError: two tensors have one name.
        """
        if self._channel is not None:
            see_the_same(self._channel, {"run-id": self._run_id, "store": self._store.url})
            refuse_namesakes(self._channel, lambda: state.collect().state_tensors)

    def admit(self, connect: Callable[[], None]) -> None:
        """Check that this process may begin. A rank that may not tells all others, which would wait for it.

        Args:
            connect: connects to the agent; it raises if the agent refuses.

        Raises:
            StoreError: the store cannot be used.
        """

        def ask() -> list[Any]:
            connect()
            probe(self._patient("Training was not started"), self._run_id)
            return [{kind: count for kind, (_, count) in self._settings.rules.items()}, self.skip_until]

        # Each machine's agent decides by itself, so one may know more than the others.
        for counts, skip in [ask()] if self._channel is None else results_of_all_ranks(self._channel, ask):
            self.failures = larger_counts(self.failures, counts_of(counts))
            self.skip_until = max(self.skip_until, int(skip))

    def claim(self) -> int:
        """Claim and return the number of the attempt that begins here.

        Raises:
            StoreError: the store failed.
        """
        words = redacted(sys.orig_argv)  # every reader of the store can read it, at any later time
        info = {"pid": os.getpid(), "command": words, "launchers": self._settings.launchers}
        here = (
            [this_machine(agent_socket()).encode()]
            if self._channel is None
            else [*dict.fromkeys(self._channel.machines)]
        )
        info |= {
            "machines": machine_names(here),
            "machine_count": len(here),
            "up": booted(self._clock.time()),
            "launch": launch(),
        }
        if self._proof:
            info["proof"] = self._proof
        store = self._patient("Training was not started")
        if self.failures:
            leaves = [kind for kind, (action, _) in self._settings.rules.items() if action == "leave"]
            earlier = self._ask(
                lambda: json.dumps(
                    [
                        earlier_failures(store, self._run_id, leaves),
                        [*earlier_errors(store, self._run_id)] if leaves else [],
                    ]
                )
            )
            counts, errors = json.loads(earlier)
            self.failures = info["failures"] = larger_counts(self.failures, counts_of(counts))
            self.errors = frozenset((fingerprint, step) for fingerprint, step in errors)
        world = 1 if self._channel is None else self._channel.world

        def claim() -> int:
            return claim_attempt(
                store, self._run_id, info, world=world, created=self._clock.time(), clock=self._clock
            )

        attempt = self._ask(claim)
        if self.stage is not None:
            self.stage.begin(store, attempt)
        return attempt

    def load(
        self, state: State, *, step: int | None, run_id: str, report: ReportDamage = unreported
    ) -> Restored:
        """Load a checkpoint of this run, or of another run, by the rules of `restore.restore`. Another run must have one.

        Args:
            report: called with each damaged checkpoint of this run, and the damage. Of several ranks the first one reports.
        """
        store = self._patient("Nothing older was restored, and training was not started")
        other = run_id != self._run_id
        if other or (self._channel is not None and self._channel.rank):
            report = unreported
        if other:
            self._ask(partial(say_what_stays_behind, store, self._run_id, run_id))
        choice = CheckpointChoice(
            step,
            self._settings.extras_worth,
            SavesInFlight(store, run_id, self._clock),
            good_first=self.skip_until > 0,
        )
        if self._channel is not None:
            return restore_together(
                self._channel,
                store,
                run_id,
                state,
                choice,
                must=other,
                anew=self._settings.begin_anew,
                report=report,
            )
        stage = None if other else self.stage
        return restore(
            store,
            run_id,
            state,
            choice,
            must=other,
            stage=stage,
            anew=self._settings.begin_anew,
            report=report,
        )

    def _ask(self, what: Callable[[], _T]) -> _T:
        return what() if self._channel is None else result_of_first_rank(self._channel, what)

    def _patient(self, then: str) -> RetryingStore:
        return RetryingStore(self._store, self._clock, then)


#: Records that are read at once, and the most of one attempt.
_RECORDS, _MOST = 16, 1024


def earlier_failures(store: BlobStore, run_id: str, leaves: Collection[str] = ()) -> dict[str, int]:
    """Return how often each class of failure has ended an attempt of this run, as the newest attempt has it.

    Args:
        leaves: the classes at which the run leaves its machine. The end of the newest attempt is added for these: its agent is gone
            and told nobody. An agent that starts its command again tells it by itself.

    Raises:
        StoreError: the store failed.
    """
    newest = newest_claim(store, run_id)
    started = attempt_record(store, run_id, newest) if newest else None
    counts = {} if started is None else counts_of(started.info.get("failures"))
    if not leaves:
        return counts
    ended = {str(each.get("counted") or each.get("kind")) for each in _failed_ranks(store, run_id, newest)}
    ended &= {*FAILURES}  # a record that cannot be read names no cause
    ended = {*filter(_is_cause, ended)} or ended
    outcomes = store.list(outcomes_prefix(run_id, newest))
    # The newest ones: an attempt leaves its machine at its end, and may have had many notices before.
    for info in sorted(outcomes, key=lambda info: (info.modified, info.key))[-_RECORDS:]:
        notice = _told(store, info.key).get("notice")
        ids = notice.get("ids") if isinstance(notice, dict) else None
        if isinstance(ids, list) and any(str(id).startswith(LEAVES_FOR_STALL) for id in ids):
            ended.add("stall")
    return counts_of({**counts, **{kind: counts.get(kind, 0) + 1 for kind in ended if kind in leaves}})


def earlier_errors(store: BlobStore, run_id: str) -> Iterator[tuple[str, int]]:
    """Yield the fingerprint and the step of each error that ended the newest attempt of this run.

    Raises:
        StoreError: the store failed.
    """
    newest = newest_claim(store, run_id)
    for failed in _failed_ranks(store, run_id, newest):
        fingerprint, step = failed.get("fingerprint"), failed.get("step")
        if isinstance(fingerprint, str) and fingerprint and type(step) is int:
            yield fingerprint, step


def _failed_ranks(store: BlobStore, run_id: str, attempt: int) -> Iterator[dict[str, Any]]:
    """Yield the records of an attempt's failed ranks, until one is a cause: the ranks before it may have lost it as a peer."""
    keys = [info.key for info in islice(store.list(failures_prefix(run_id, attempt)), _MOST)]
    for at in range(0, len(keys), _RECORDS):
        records = side_by_side(lambda key: _told(store, key), keys[at : at + _RECORDS])
        yield from records
        if any(_is_cause(str(each.get("kind"))) for each in records):
            return


def _is_cause(kind: str) -> bool:
    """Return whether a failure of this class follows from no other rank's."""
    return kind in FAILURES and not (kind in CLASSES and CLASSES[kind].follows)


def _told(store: BlobStore, key: str) -> dict[str, Any]:
    """Return a record for people; {} if it is none."""
    try:
        return record(store.get(key))
    except NotFoundError:
        return {}


# Messages for the user when training begins: the run, its step and its store. The first rank prints them, for all.
#
# `spotguard run` reports the step by itself, at the same terminal. It cannot know that a run has nothing left to do.


class StartupMessages:
    """The messages of one rank; only the first rank of a job prints any.

    Args:
        first: whether this rank speaks for its job.
        url: URL of the store.
        proof: the verdict of `spotguard prove` about this code.
    """

    def __init__(self, first: bool, url: str, proof: str = "") -> None:
        self._first = first
        self._url = url
        self._proof = proof

    def restored(self, run_id: str, step: int, *, shown: bool, attempt: int = 0, skip: int = 0) -> None:
        """Report the step from which training goes on. A run's first attempt also tells whether its code is proven.

        Args:
            shown: whether an agent shows at this terminal where training begins.
            skip: the steps whose data the script is to skip.
        """
        if not self._first:
            return
        text = f"resumed from step {step} of run {run_id}" if step else f"run {run_id} begins at step 0"
        text = f"{text} in {self._url}"
        if attempt == 1 and not is_exact(self._proof):
            if is_verdict(self._proof):
                log.warning("this code was proven %s: %s names the cause", self._proof, command())
            else:
                text = f"{text}; {self._proof}, so type: {command()}"
        tell(text, aloud=not shown)
        newer_torch(versions().get("torch", ""))
        if skip:
            log.warning(
                "values were not finite behind the data of the next %d steps: guard.skip_steps is %d, for the script to skip "
                "that data",
                skip,
                skip,
            )

    def finished(self, run_id: str, done: int, total: int) -> None:
        """Report that the loop has no step left to do."""
        if self._first:
            tell(
                f"guard.steps({total}) has nothing left to do: run {run_id} has done {done} steps. To train from step 0, "
                "pass another run id (run_id of register, --run-id, or SPOTGUARD_RUN_ID)"
            )


def newer_torch(version: str) -> None:
    """Warn of a torch that is newer than those tested, because spotguard depends on how torch's optimizers keep their state."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers > TESTED_TORCH:
        log.warning(
            "torch %s is newer than %d.%d, the newest that spotguard was tested with: prove that your script resumes exactly: %s",
            version,
            *TESTED_TORCH,
            command(),
        )


# Lines that a user at the terminal sees even if the script has set up no logging.
#
# Python then shows warnings (`logging.lastResort`), and nothing below. A newcomer saw no message when a run resumed from step
# 300, or had nothing left to do. The few lines that report this are no warnings. spotguard logs them as any other. If the
# script has not set up logging, it also prints them as Python prints a warning. If the script has a handler (even one that does
# nothing) or a level for `spotguard`, that alone decides.

log = logging.getLogger("spotguard")

#: The newest torch that is tested in each change (docs/reference/compatibility.md).
TESTED_TORCH = (2, 13)


def tell(text: str, *, aloud: bool = True) -> None:
    """Log a line, and print it if the script has set up no logging.

    Args:
        aloud: False if another process shows the line at this very terminal.
    """
    log.log(logging.INFO if aloud else logging.DEBUG, "%s", text)
    if aloud and logging.lastResort is not None and _nothing_is_set_up():
        logging.lastResort.handle(
            log.makeRecord(log.name, logging.INFO, __file__, 0, f"spotguard: {text}", (), None)
        )


def _nothing_is_set_up() -> bool:
    """Return whether only `logging.lastResort` would show a warning, and the `spotguard` level lets these lines through."""
    return not is_set_up() and log.isEnabledFor(logging.WARNING) and log.level <= logging.INFO
