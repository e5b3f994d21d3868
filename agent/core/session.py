"""Who is registered, and what each training process last said about itself.

Words of a peer are clipped on the way in: they end in logs and in status answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...hooks.ipc.protocol import Committed, Position, Register
from ...providers.text import NAME, TEXT, clip


@dataclass(slots=True)
class Session:
    """One registered training process."""

    number: int
    pid: int
    uid: int
    run_id: str
    name: str
    store: str
    rank: int
    world: int
    nbytes: int
    since: float
    #: It makes a checkpoint when it is asked to.
    checkpoints: bool = False
    position: Position | None = None
    heard_at: float = 0.0
    #: It said goodbye: its training has come to its end by itself.
    left: bool = False

    @classmethod
    def of(cls, number: int, pid: int, uid: int, said: Register, now: float) -> Session:
        return cls(
            number=number,
            pid=pid,
            uid=uid,
            run_id=clip(said.run_id, NAME),
            name=clip(said.name, NAME),
            store=clip(said.store, TEXT),
            rank=said.rank,
            world=said.world,
            nbytes=said.nbytes,
            since=now,
            checkpoints=said.checkpoints,
        )

    def same_client(self, other: Session) -> bool:
        """Whether both are one client's connections, one after the other: a process may have several clients
        (a guard, and functions given to `on_notice`, which name no store)."""
        return (self.pid, self.store) == (other.pid, other.store)

    @property
    def run(self) -> tuple[int, str]:
        """Whose ranks leave together: the user's run."""
        return self.uid, self.run_id

    @property
    def step(self) -> int:
        """Below 0: it has not said, has not restored, or is a function of `on_notice`, which counts no steps."""
        return self.position.step if self.position else -1

    def stands(self, position: Position, now: float) -> None:
        self.position, self.heard_at = position, now

    def saved(self, committed: Committed, now: float) -> None:
        """A checkpoint is committed: newer than what the last `Position` told, and so may its step be."""
        at = self.position or Position(committed.step)
        step = max(at.step, committed.step)
        self.stands(
            replace(
                at,
                step=step,
                checkpoint_step=committed.step,
                checkpoint_age=0.0,
                checkpoint_level=committed.level,
            ),
            now,
        )

    def status(self, now: float) -> dict[str, Any]:
        at = self.position or Position(-1)
        age = at.checkpoint_age + (now - self.heard_at) if at.checkpoint_step >= 0 else None
        return {
            "session": self.number,
            "pid": self.pid,
            "uid": self.uid,
            "run_id": self.run_id,
            "name": self.name,
            "store": self.store,
            "rank": self.rank,
            "world": self.world,
            "bytes": self.nbytes,
            "for_seconds": round(now - self.since, 1),
            "step": at.step,
            "checkpoint_step": at.checkpoint_step,
            "checkpoint_age": None if age is None else round(age, 1),
            "checkpoint_level": clip(at.checkpoint_level, NAME) if age is not None else None,
            "interval": at.interval or None,
            "save_seconds": round(at.save_seconds, 3) if at.save_seconds >= 0 else None,
            "rate": round(at.rate, 1) or None,
            "mode": clip(at.mode, NAME),
            "detail": clip(at.detail, TEXT),
            "unmarked_steps": at.unmarked_steps if at.unmarked_steps >= 0 else None,
            "marked": at.marked,
            "misuse": clip(at.misuse, 2 * TEXT),  # with its advice at the end
        }
