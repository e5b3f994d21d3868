"""How training ends after a notice."""

from __future__ import annotations

#: `EX_TEMPFAIL` of sysexits.h: "temporary failure, run me again". What `spotguard run` exits with.
EX_TEMPFAIL = 75


class Preempted(SystemExit):
    """Raised in the training thread once its state is committed: from `guard.step()`, or from the registered
    optimizer's `step()` if the thread was parked there. Let it pass: it is a `SystemExit` with code 75, so
    `finally` blocks and exit handlers run, and whoever stands over the process runs it again.
    """

    def __init__(self, code: int = EX_TEMPFAIL) -> None:
        super().__init__(code)
