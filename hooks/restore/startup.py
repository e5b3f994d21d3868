"""Where training begins: with a number of its own for this start of the job, and from one checkpoint.

Nothing older is taken and nothing is begun because a store was away for a moment: it is asked again. Of several ranks the first
asks, for all.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial

from ...providers.clock import Clock
from ...providers.redaction import redacted
from ...providers.stores.base import BlobStore
from ..arguments import extras_worth, launchers, yes
from ..checkpoint.attempts import claim_attempt
from ..checkpoint.local_stage import Stage
from ..checkpoint.store_probe import probe
from ..consensus.agree_on import of_all, of_the_first
from ..consensus.channel import Channel
from ..consensus.shared_names import refuse_namesakes
from ..state.state import State
from .collective import restore_together, see_the_same
from .restore import Restored, restore, say_what_stays_behind
from .retrying_store import RetryingStore


class Startup:
    """Of one run. On the training thread.

    Args:
        channel: to the other ranks; None in a job of one process.
    """

    def __init__(self, store: BlobStore, run_id: str, clock: Clock, channel: Channel | None) -> None:
        self._store = store
        self._run_id = run_id
        self._clock = clock
        self._channel = channel
        self._extras_worth = extras_worth()
        self._anew = yes("SPOTGUARD_BEGIN_ANEW")
        #: This run's folder on this machine, where it has one.
        self.stage: Stage | None = None

    def meet(self, state: State) -> None:
        """See that all ranks of the job mean the same run, and the same by its names.

        Raises:
            UsageError: they were told different things.
            StateError: two tensors have one name.
        """
        if self._channel is not None:
            see_the_same(self._channel, {"run-id": self._run_id, "store": self._store.url})
            refuse_namesakes(self._channel, lambda: state.collect().leaves)

    def admit(self, connect: Callable[[], None]) -> None:
        """See that this process may begin. A rank that may not says so to all: they would wait for it.

        Args:
            connect: to the agent; raises where that refuses.

        Raises:
            StoreError: the store cannot be used.
        """

        def ask() -> None:
            connect()
            probe(self._patient("Training was not started"), self._run_id)

        if self._channel is None:
            ask()
        else:
            of_all(self._channel, ask)

    def claim(self) -> int:
        """The number of the attempt that begins here.

        Raises:
            StoreError: the store failed.
        """
        command = redacted(sys.orig_argv)  # whoever may read the store reads it, for ever
        info = {"pid": os.getpid(), "command": command, "launchers": launchers(os.environ)}
        store = self._patient("Training was not started")
        world = 1 if self._channel is None else self._channel.world

        def claim() -> int:
            return claim_attempt(store, self._run_id, info, world=world, created=self._clock.time())

        attempt = self._ask(claim)
        if self.stage is not None:
            self.stage.begin(store, attempt)
        return attempt

    def load(self, state: State, *, step: int | None, run_id: str) -> Restored:
        """As `restore.restore`, of this run or of another one, which must have a checkpoint then."""
        store = self._patient("Nothing older was taken and nothing begun")
        other = run_id != self._run_id
        if other:
            self._ask(partial(say_what_stays_behind, store, self._run_id, run_id))
        if self._channel is not None:
            return restore_together(
                self._channel,
                store,
                run_id,
                state,
                step=step,
                must=other,
                extras_worth=self._extras_worth,
                anew=self._anew,
            )
        return restore(
            store,
            run_id,
            state,
            step=step,
            must=other,
            stage=None if other else self.stage,
            extras_worth=self._extras_worth,
            anew=self._anew,
        )

    def _ask(self, what: Callable[[], int]) -> int:
        return what() if self._channel is None else of_the_first(self._channel, what)

    def _patient(self, then: str) -> RetryingStore:
        return RetryingStore(self._store, self._clock, then)


# What a person is told when training begins: of which run, from which step, in which store; by the first rank, for all.
#
# `spotguard run` says where training stands by itself, at the same terminal. That a run has nothing left to do it cannot know.


class StartupMessages:
    """
    Args:
        first: whether this rank speaks for its job.
        url: of the store.
    """

    def __init__(self, first: bool, url: str) -> None:
        self._first = first
        self._url = url

    def restored(self, run_id: str, step: int, *, guarded: bool) -> None:
        """
        Args:
            guarded: an agent knows of this process.
        """
        if not self._first:
            return
        text = f"resumed from step {step} of run {run_id}" if step else f"run {run_id} begins at step 0"
        # A service speaks to the machine's journal, and nobody at this terminal reads that.
        by_run = guarded and bool(os.environ.get("SPOTGUARD_PARENT"))
        tell(f"{text} in {self._url}", aloud=not by_run)

    def finished(self, run_id: str, done: int, total: int) -> None:
        """The loop has no turn."""
        if self._first:
            tell(
                f"nothing is left to do: run {run_id} has done {done} steps, and its loop ends after {total}. To train anew give "
                "another run id (run_id of register, --run-id, or SPOTGUARD_RUN_ID)"
            )


# What a person at the terminal is told, also where the script has set up no logging.
#
# Python shows warnings there by itself (`logging.lastResort`), and nothing below: a newcomer saw a run that goes on from step 300,
# or that has nothing left to do, without a word. The few lines that say so are no warnings. They are logged as any other,
# and where nobody has set anything up they are shown the way a warning would be. Whoever has said anything of logging (a
# handler, be it one that does nothing, or a level for `spotguard`) is shown what that says, and no more.

log = logging.getLogger("spotguard")


def tell(text: str, *, aloud: bool = True) -> None:
    """Log it, and see that it is read.

    Args:
        aloud: False: somebody else shows it at this very terminal.
    """
    log.info("%s", text)
    if aloud and logging.lastResort is not None and _nothing_is_set_up():
        logging.lastResort.handle(
            log.makeRecord(log.name, logging.INFO, __file__, 0, f"spotguard: {text}", (), None)
        )


def _nothing_is_set_up() -> bool:
    """Whether a warning would come to the last resort, and nobody has raised our own level above these lines."""
    return not log.hasHandlers() and log.isEnabledFor(logging.WARNING) and log.level <= logging.INFO
