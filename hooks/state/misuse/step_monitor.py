"""What a training loop does wrong with `guard.step()` and its optimizers, seen by torch's hook on all optimizers' steps.

The monitor counts steps since the last boundary, knows which optimizers are registered, and which parameters are. It
changes nothing: it warns once by case, says what is wrong for `status`, `doctor` and `drill`, and names the registered
optimizers whose moments are not those of the training any more.

A usual step costs one call, a look into a set and an addition. Clocks, names and call stacks are asked for in the first
turns after a restore, and where something is out of the ordinary.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .loop_order import LoopOrder, Misplaced, call_path
from .unregistered import UnregisteredOptimizer, few, holds

log = logging.getLogger("spotguard")

#: Without a boundary so many optimizer steps, and so many seconds, are remarkable.
_STEPS, _SECONDS = 20, 30.0
#: With so many a loop goes on past where its first boundary belongs.
_SEVERAL = 2
#: After the first boundary, so many times the most steps that any turn had.
_TIMES = 10
#: Turns in which one unregistered optimizer steps: what lives for one turn (an inner loop's, an evaluation's) leaves nothing
#: behind. One that steps nothing registered may be anybody's, and has a turn more.
_TURNS, _TURNS_ELSEWHERE = 2, 3

NEVER = (
    "guard.step() was not called since guard.restore(), and no save is possible after the first optimizer step; call "
    "guard.step() after each optimizer.step()"
)
NEITHER = (
    "neither guard.restore() nor guard.step() was called, and nothing is saved; call done = guard.restore() before the "
    "loop, and guard.step() after each optimizer.step()"
)
STOPPED = (
    "guard.step() is not called any more, and nothing newer is saved; call guard.step() after each optimizer.step(), in "
    "this part of the script too"
)
TOP = (
    "guard.step() (%s) comes before optimizer.step() (%s) in the loop, so a resumed run leaves out one step; call "
    "guard.step() at the end of the loop's body"
)
BETWEEN = (
    "guard.step() (%s) comes between two optimizers, and %s steps after it (%s), so a checkpoint holds half a step; call "
    "guard.step() after the last optimizer"
)
UNREGISTERED = (
    "an optimizer is not registered (%s), so its state is not saved and a resumed run begins it anew; add it to "
    "spotguard.register(…)"
)
ELSEWHERE = "an optimizer and what it trains are not registered (%s), so neither is saved; register both if a resumed run needs them"
DEAD = (
    "the registered optimizer %r no longer steps, and %s in its place: checkpoints lack the moments; change %r itself "
    "(param_groups, state), or register all optimizers before training begins"
)
#: What is wrong, the worst first.
_CASES = ("unmarked", "dead", "order", "unregistered")


class StepMonitor:
    """Of one guard. `begin` and `close` frame its life; nothing is hooked outside of it.

    Args:
        values: what is registered, by name.
        optimizers: the optimizers that are saved, by name; where wrappers are registered, what these lead to.
        now: monotonic seconds.
        save_at_boundaries: called with the reason when a registered tensor changes outside of a registered optimizer's
            step.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        optimizers: Mapping[str, Optimizer],
        now: Callable[[], float],
        save_at_boundaries: Callable[[str], None],
    ) -> None:
        self._values = values
        self._now = now
        self._save_at_boundaries = save_at_boundaries
        self._lock = threading.Lock()
        self._handle: RemovableHandle | None = None
        #: Registered optimizers by id, and those that lie in a registered object: held, so that no id is taken anew.
        self._registered = {id(each): (name, each) for name, each in optimizers.items()}
        for name, value in values.items():
            if isinstance(value, Optimizer) and not holds(value, self._registered.keys()):
                self._registered[id(value)] = (name, value)
        #: ids of the optimizers whose steps are only counted.
        self._quiet: frozenset[int] = frozenset()
        self._others: dict[int, UnregisteredOptimizer] = {}
        #: Of this turn: the ids of those that stepped, and the unregistered among them.
        self._stepped: set[int] = set()
        self._beside: dict[int, UnregisteredOptimizer] = {}
        #: Whether the end of this turn is looked at.
        self._alert = True
        self._order: LoopOrder | None = None
        #: The most steps that a turn had, and the steps of this one at which the clock is asked.
        self._most, self._look_at = 0, _STEPS
        #: Monotonic seconds from which time counts that goes by without a boundary. None: from the next look on.
        self._since: float | None = None
        self._restored = False
        self._warned: set[str] = set()
        self._misuse: dict[str, str] = {}
        #: Optimizer steps since the last boundary; since training began, before the first.
        self.steps = 0
        #: Whether there was a boundary since training began.
        self.marked = False
        #: Registered optimizers by name that step no more while others train their parameters, and why that is so. As of the
        #: last boundary. Any thread.
        self.dead: Mapping[str, str] = {}

    def begin(self) -> None:
        """See every optimizer step of this process from now on."""
        self._since = self._now()
        self._handle = register_optimizer_step_pre_hook(self._on_step)

    def close(self) -> None:
        """See none any more. Also in a forked child, whose steps are nobody's business."""
        self._alert = False
        if self._handle is not None:
            self._handle.remove()

    @property
    def misuse(self) -> str:
        """What is wrong with how the loop uses spotguard, and what to do about it, with a semicolon between; "" where
        nothing is. The worst alone. Any thread."""
        return next((what for case in _CASES if (what := self._misuse.get(case))), "")

    @property
    def unmarked(self) -> str:
        """Why no boundary is to be waited for; "" where there may come one. Any thread."""
        early = NEVER if self._restored and not self.marked and self.steps >= _SEVERAL else ""
        return self._misuse.get("unmarked") or early

    def position(self) -> dict[str, Any]:
        """For a `Position`. Any thread."""
        return {"unmarked_steps": self.steps, "marked": self.marked, "misuse": self.misuse}

    # --- the training thread ---

    def restored(self) -> None:
        """Training begins, or goes back."""
        with self._lock:
            self._restored, self.marked, self.steps = True, False, 0
            self._since, self._look_at = self._now(), max(_STEPS, _TIMES * self._most)
            self._others, self._beside, self._stepped = {}, {}, set()
            self.dead, self._misuse = {}, {}
            self._order, self._alert, self._quiet = LoopOrder(), True, frozenset()

    def boundary(self) -> None:
        """A turn is over: called from `guard.step()`."""
        if self._alert:
            self._guarded(self._end_turn)
        if self.steps > self._most:
            self._most = self.steps
            self._marked_again()
        self.steps = 0
        self._stepped.clear()

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Before each step of any optimizer, on whatever thread."""
        key = id(optimizer)
        if key in self._quiet:
            self._stepped.add(key)
            self.steps += 1
            if self.steps < self._look_at:
                return
        self._guarded(self._see, optimizer, key)

    def _guarded(self, what: Callable[..., None], *values: Any) -> None:
        try:
            with self._lock:
                what(*values)
        except Exception:  # a mistake of ours must not end the training that it looks at
            self.close()
            log.exception("spotguard failed inside; please report this")

    # --- a step that is looked at, with the lock ---

    def _see(self, optimizer: Optimizer, key: int) -> None:
        if key not in self._quiet:
            if key not in self._registered and not self._trains_ours(optimizer, key):
                return
            if self._order is not None and key not in self._stepped:
                # This function, `_guarded`, `_on_step`; then torch.
                self._order.stepped(key, call_path(sys._getframe(3)))
            self._stepped.add(key)
            self.steps += 1
        if self.steps >= self._look_at:
            self._ask_the_clock()

    def _trains_ours(self, optimizer: Optimizer, key: int) -> bool:
        """Whether this unregistered optimizer's step is one of the guarded training."""
        other = self._others.get(key)
        if other is None or other.ref() is not optimizer:
            other = self._others[key] = self._meet(optimizer, key)
        if other.ignored:
            return key in self._registered
        if other.outdated(optimizer):
            other.follow(optimizer, self._values, self._registered.values())
            if other.names and self._restored:
                self._save_at_boundaries(f"{other.words} and is not registered")
        if other.owners or not other.warned:
            self._beside[key], self._alert = other, True
        return bool(other.names)

    def _meet(self, optimizer: Optimizer, key: int) -> UnregisteredOptimizer:
        other = UnregisteredOptimizer(optimizer)
        inside = next((name for name, value in self._values.items() if holds(value, {key})), None)
        if inside is not None:
            self._registered[key] = (inside, optimizer)
        other.ignored = inside is not None or holds(optimizer, self._registered.keys())
        return other

    def _ask_the_clock(self) -> None:
        now = self._now()
        self._since = now if self._since is None else self._since
        if now - self._since < _SECONDS:
            self._look_at = self.steps + _STEPS
            return
        self._look_at = sys.maxsize
        what = STOPPED if self.marked else NEVER if self._restored else NEITHER
        self._misuse["unmarked"] = what
        if self._first(what):
            log.warning("%d optimizer steps without a boundary: %s", self.steps, what)

    def _first(self, case: str) -> bool:
        seen = case in self._warned
        self._warned.add(case)
        return not seen

    # --- the end of a turn that is looked at ---

    def _marked_again(self) -> None:
        self._look_at, self._since = max(_STEPS, _TIMES * self._most), None
        if self._misuse.pop("unmarked", ""):
            log.info("guard.step() was called, after %d optimizer steps: saves are possible", self.steps)

    def _end_turn(self) -> None:
        self.marked = True
        beside, self._beside = [*self._beside.values()], {}
        self._others = {key: each for key, each in self._others.items() if each.ref() is not None}
        self._look_for_dead(beside)
        self._look_for_unregistered(beside)
        if self._order is not None:
            # This function, `_guarded`, `boundary`; then `guard.step()`.
            if (misplaced := self._order.boundary(call_path(sys._getframe(3)))) is not None:
                self._misplaced(misplaced)
            if self._order.done:
                self._order = None
        if self._order is None:
            self._quiet = frozenset(self._registered)
            self._alert = bool(self.dead)

    def _look_for_dead(self, beside: Iterable[UnregisteredOptimizer]) -> None:
        instead = {name: other for other in beside for name in other.owners}
        alive = {self._registered[key][0] for key in self._stepped if key in self._registered}
        dead = {name: why for name, why in self.dead.items() if name not in alive - instead.keys()}
        for name in instead.keys() - alive:
            values = (name, instead[name].words, name)
            dead[name] = DEAD % values
            if self._first("dead"):
                log.warning(DEAD, *values)
        self.dead = dead
        self._set("dead", next(iter(dead.values()), ""))

    def _look_for_unregistered(self, beside: Iterable[UnregisteredOptimizer]) -> None:
        ours: list[str] = []
        elsewhere: list[str] = []
        for other in beside:
            other.turns += 1
            if not other.owners.isdisjoint(self.dead):
                continue  # that says more
            if other.turns >= (_TURNS if other.names else _TURNS_ELSEWHERE) and not other.warned:
                other.warned = True
                (ours if other.names else elsewhere).append(other.words)
        if ours:
            self._misuse.setdefault("unregistered", UNREGISTERED % few(ours))
            if self._first("unregistered"):
                log.warning(UNREGISTERED, few(ours))
        if elsewhere and self._first("elsewhere"):
            log.warning(ELSEWHERE, few(elsewhere))

    def _misplaced(self, found: Misplaced) -> None:
        if found.between:
            who = [self._name(key) for key in found.after]
            values: tuple[str, ...] = (found.boundary, " and ".join(sorted(who)), found.step)
            what = BETWEEN
        else:
            values, what = (found.boundary, found.step), TOP
        self._misuse["order"] = what % values
        if self._first(what):
            log.warning(what, *values)

    def _name(self, key: int) -> str:
        if key in self._registered:
            return self._registered[key][0]
        return self._others[key].cls if key in self._others else "another"

    def _set(self, case: str, what: str) -> None:
        if what:
            self._misuse[case] = what
        else:
            self._misuse.pop(case, None)


# The moment at which a registered optimizer changes something, and the moment at which it has.


def hook(
    optimizer: Optimizer,
    before_change: Callable[[FrameType], object],
    after_change: Callable[[FrameType], object],
) -> list[RemovableHandle]:
    """Have `before_change` called before this optimizer changes anything, and `after_change` when its step is over, until
    the handles are removed. Both are given the frame that runs the step; a step that raises ends without `after_change`.

    A closure (LBFGS, Lightning) runs forward and backward inside `step()`: there the state changes only after
    the closure has run once, so the gate is passed at that moment and not before.
    """

    def pre_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = sys._getframe(1)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            before_change(frame)
            return None

        def gated() -> Any:
            loss = closure()
            before_change(frame)  # nothing the second time: the state is dirty until the boundary
            return loss

        if len(args) > 1:
            return (args[0], gated, *args[2:]), kwargs
        return args, {**kwargs, "closure": gated}

    def post_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after_change(sys._getframe(1))

    return [optimizer.register_step_pre_hook(pre_hook), optimizer.register_step_post_hook(post_hook)]
