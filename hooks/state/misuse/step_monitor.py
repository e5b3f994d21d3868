"""Misuse of `guard.step()` and of optimizers in a training loop, detected by torch's hook on all optimizers' steps.

The monitor counts steps since the last boundary, and knows the registered optimizers and parameters. It changes
nothing. It warns once per case, and reports the misuse to `status`, `doctor` and `drill`. It also names each
registered optimizer whose moments training no longer uses.

A usual step costs one call, a lookup in a set and an addition. The monitor reads clocks, names and call stacks only
in the first turns after a restore, and in unusual cases.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ..changes.change_detector import ChangeDetector
from ..sharding.dtensor import local
from .carried_gradient import CarriedGradient
from .loop_order import LoopOrder, Misplaced, call_path
from .repeated_steps import begins_again
from .script.loop_counters import mistakes
from .unregistered import UnregisteredOptimizer, few, holds, knows, wrappers_on

log = logging.getLogger("spotguard")

#: A warning needs both this many optimizer steps and this many seconds without a boundary.
_STEPS, _SECONDS = 20, 30.0
#: Optimizer steps without a first boundary, after which the loop has passed the place where that boundary belongs.
_SEVERAL = 2
#: After the first boundary the limit of steps is this many times the most steps of any turn.
_TIMES = 10
#: Turns in which an unregistered optimizer must step before a warning. An optimizer that lives for one turn (an inner
#: loop's, an evaluation's) leaves no state behind. An optimizer that steps no registered tensor may belong to other
#: code, so it gets one turn more.
_TURNS, _TURNS_ELSEWHERE = 2, 3

NEVER = (
    "guard.step() was not called since guard.restore(), so no save is possible after the first optimizer "
    "step; call guard.step() after each optimizer.step()"
)
UNSEEN = (
    "the weights change, but guard.step() was not called since guard.restore(), so no save is possible; call "
    "guard.step() after each step of the training"
)
NEITHER = (
    "neither guard.restore() nor guard.step() was called, so nothing is saved; call done = "
    "guard.restore() before the loop, and guard.step() after each optimizer.step()"
)
STOPPED = (
    "guard.step() is no longer called, so nothing newer is saved; call guard.step() after each "
    "optimizer.step(), in this part of the script too"
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
    "an optimizer is not registered (%s), so its state is not saved and a resumed run starts it fresh; "
    "add it to spotguard.register(…)"
)
ELSEWHERE = "an optimizer and what it trains are not registered (%s), so neither is saved; register both if a resumed run needs them"
DEAD = (
    "the registered optimizer %r no longer steps, and %s in its place: checkpoints lack the moments; change %r itself "
    "(param_groups, state), or register all optimizers before training begins"
)
#: The cases of misuse, the worst first.
_CASES = ("unmarked", "dead", "order", "carried", "unregistered")


class StepMonitor:
    """The misuse detector of one guard. It hooks optimizers only between `begin` and `close`.

    Args:
        values: the registered values, by name.
        optimizers: the saved optimizers, by name; for a registered wrapper, the optimizers inside it.
        now: returns monotonic seconds.
        save_at_boundaries: called with the reason when a registered tensor changes outside a registered optimizer's
            step.
        around: called with each unregistered wrapper of a registered optimizer, and the state of a module's communication hook.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        optimizers: Mapping[str, Optimizer],
        now: Callable[[], float],
        save_at_boundaries: Callable[[str], None],
        around: Callable[..., None],
    ) -> None:
        self._values = values
        self._now, self._around = now, around
        self._save_at_boundaries = save_at_boundaries
        self._lock = threading.Lock()
        self._handle: RemovableHandle | None = None
        #: Registered optimizers by id, and those inside a registered object. The references keep their ids from being reused.
        self._registered = {id(each): (name, each) for name, each in optimizers.items()}
        for name, value in values.items():
            if isinstance(value, Optimizer) and not holds(value, self._registered.keys()):
                self._registered[id(value)] = (name, value)
        #: What optimizers carry to their next step, by id; and those of which that is known while they step, and while they do not.
        self._carried: dict[int, CarriedGradient] = {}
        self._seen_stepping, self._settled = set[int](), set[int]()
        #: The ids of the optimizers whose steps the monitor only counts.
        self._quiet: frozenset[int] = frozenset()
        self._others: dict[int, UnregisteredOptimizer] = {}
        #: The ids of the optimizers that stepped in this turn, and the unregistered ones among them.
        self._stepped: set[int] = set()
        self._beside: dict[int, UnregisteredOptimizer] = {}
        #: Whether the monitor checks the end of this turn.
        self._alert = True
        self._order: LoopOrder | None = None
        #: The most steps of any turn, and the step count of this turn at which the monitor reads the clock.
        self._most, self._look_at = 0, _STEPS
        #: Monotonic seconds at which the time without a boundary begins. None: it begins at the next clock reading.
        self._since: float | None = None
        self._restored = self._resumed = False
        self._warned: set[str] = set()
        self._misuse: dict[str, str] = {}
        #: Optimizer steps since the last boundary; before the first boundary, since training began.
        self.steps = 0
        #: Whether training has reached a boundary since it began.
        self.marked = False
        #: The weights as of the restore, in a job whose steps no hook sees; None from its first boundary on.
        self._weights: ChangeDetector | None = None
        #: The reason by name for each registered optimizer that no longer steps while another trains its parameters.
        #: It is as of the last boundary. Any thread may read it.
        self.dead: Mapping[str, str] = {}

    def begin(self) -> None:
        """Watch every optimizer step of this process from now on."""
        self._since = self._now()
        self._handle = register_optimizer_step_pre_hook(self._on_step)

    def close(self) -> None:
        """Stop watching steps. A forked child calls this too, because its steps are not the guarded training's."""
        self._alert = False
        if self._handle is not None:
            self._handle.remove()
        self._forget_carried()
        self._settled.update(self._registered)

    def _forget_carried(self) -> None:
        for each in self._carried.values():
            each.close()
        self._carried, self._seen_stepping, self._settled = {}, set(), set()

    @property
    def misuse(self) -> str:
        """Return the worst misuse of spotguard in the loop and its remedy, separated by a semicolon; "" if there is none.

        Any thread may call it.
        """
        known = next((what for case in _CASES if (what := self._misuse.get(case))), "")
        return known or (UNSEEN if self.trained_unseen else "")

    @property
    def unmarked(self) -> str:
        """Return why no boundary can be expected; "" if one may still come. Any thread may call it."""
        early = NEVER if self._restored and not self.marked and self.steps >= _SEVERAL else ""
        return self._misuse.get("unmarked") or early or (UNSEEN if self.trained_unseen else "")

    @property
    def trained_unseen(self) -> bool:
        """Return whether weights changed since the restore although neither an optimizer stepped nor a boundary came.

        Any thread may call it.
        """
        weights = self._weights
        return weights is not None and bool(weights.inconsistency())

    @property
    def trains_elsewhere(self) -> bool:
        """Whether an optimizer has stepped that trains no registered tensor, and lives."""
        others = [*self._others.values()]
        return any(not (each.names or each.ignored) and each.ref() is not None for each in others)

    def position(self) -> dict[str, Any]:
        """Return the fields for a `Position`. Any thread may call it."""
        return {"unmarked_steps": self.steps, "marked": self.marked, "misuse": self.misuse}

    # --- the training thread ---

    def restored(self, *, resumed: bool = False) -> None:
        """Start anew: training begins, or returns to an earlier step, or goes on from a checkpoint (`resumed`)."""
        self._resumed = resumed
        with self._lock:
            self._restored, self.marked, self.steps = True, False, 0
            self._since, self._look_at = self._now(), max(_STEPS, _TIMES * self._most)
            self._others, self._beside, self._stepped = {}, {}, set()
            self._forget_carried()
            self.dead, self._misuse = {}, {}
            self._order, self._alert, self._quiet = LoopOrder(), True, frozenset()
            # DistributedDataParallel keeps (hook, state) of PowerSGD and others.
            for value in self._values.values():
                for _, state in getattr(value, "_comm_hooks", ()):
                    if not knows(self._values, state):
                        self._around(state)
            self._weights = None if self._registered else _weights_of(self._values)

    def look_again(self) -> None:
        """Look for wrappers in the next step of each optimizer: training may have made one."""
        self._quiet = frozenset()

    def boundary(self) -> None:
        """End a turn. `guard.step()` calls this."""
        if self._alert:
            self._guarded(self._end_turn)
        if self.steps > self._most:
            self._most = self.steps
            self._marked_again()
        self.steps = 0
        idle = not self._stepped.issuperset(self._registered)
        if (
            self._carried
            or not self._seen_stepping.issuperset(self._stepped)
            or (idle and not self._settled.issuperset(self._registered.keys() - self._stepped))
        ):
            self._guarded(self._follow_carried)
        self._stepped.clear()

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count a step, before any optimizer makes it. Any thread may make the step."""
        key = id(optimizer)
        if key in self._quiet:
            self._stepped.add(key)
            self.steps += 1
            if self.steps < self._look_at:
                return
        self._guarded(
            self._see, optimizer, key, (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
        )

    def _guarded(self, what: Callable[..., None], *values: Any) -> None:
        try:
            with self._lock:
                what(*values)
        except Exception:  # a fault of the monitor must not end the training that it watches
            self.close()
            log.exception("internal error; please report it [SG704]")

    # --- a step that is checked, under the lock ---

    def _see(self, optimizer: Optimizer, key: int, closure: bool) -> None:
        if key in self._carried:
            self._carried[key].stepping(closure)
        if key not in self._quiet:
            if key not in self._registered and not self._trains_ours(optimizer, key):
                return
            if self._order is not None and key not in self._stepped:
                # Skip this function, `_guarded` and `_on_step`; the next frame is torch's.
                self._order.stepped(key, call_path(sys._getframe(3)))
            if key in self._registered and key not in self._stepped:
                for wrapper, shapes in wrappers_on(sys._getframe(3), optimizer, self._values):
                    self._around(wrapper, shapes)
                if self._order is None:
                    self._quiet |= {key}
            self._stepped.add(key)
            self.steps += 1
        if self.steps >= self._look_at:
            self._ask_the_clock()

    def _trains_ours(self, optimizer: Optimizer, key: int) -> bool:
        """Return whether this unregistered optimizer's step belongs to the guarded training."""
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
        message = STOPPED if self.marked else NEVER if self._restored else NEITHER
        self._misuse["unmarked"] = message
        self._say("%d optimizer steps without a boundary: " + message, self.steps)

    def _say(self, message: str, *values: object) -> None:
        """Log a message once."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, *values)

    # --- the end of a turn that is checked ---

    def _follow_carried(self) -> None:
        self._seen_stepping |= self._stepped - self._registered.keys()
        idle = self._registered.keys() - self._stepped - self._settled
        for key in (idle | (self._stepped - self._seen_stepping)) - self._carried.keys():
            self._carried[key] = CarriedGradient(self._registered[key][1])
        for key, each in [*self._carried.items()]:
            # While the order of the loop is not known, a step may belong to the turn before it.
            if (
                (steps_on_it := each.turn(key in self._stepped)) is None
                or self._order
                or self._misuse.get("order")
            ):
                continue
            each.close()
            del self._carried[key]
            self._seen_stepping.add(key)
            self._quiet |= {key}
            if each.idled or steps_on_it:
                self._settled.add(key)
            if steps_on_it:
                name = self._registered[key][0]
                self._misuse["carried"] = each.message % (name, name)
                self._say(each.message, name, name)
        self._quiet = self._quiet - self._carried.keys()

    def _marked_again(self) -> None:
        self._look_at, self._since = max(_STEPS, _TIMES * self._most), None
        if self._misuse.pop("unmarked", ""):
            log.info("guard.step() was called, after %d optimizer steps: saves are possible", self.steps)

    def _end_turn(self) -> None:
        self.marked, self._weights = True, None
        beside, self._beside = [*self._beside.values()], {}
        self._others = {key: each for key, each in self._others.items() if each.ref() is not None}
        self._look_for_dead(beside)
        self._look_for_unregistered(beside)
        if self._order is not None:
            # Skip this function, `_guarded` and `boundary`; the next frame is `guard.step()`.
            frame = sys._getframe(3)
            found = [*mistakes(frame, self._values)] if self._order.begins else []
            if self._order.begins and self._resumed:
                found += begins_again(frame, self._values)
            for what in found:
                self._misuse.setdefault("order", what[0] % what[1:])
                self._say(*what)
            if (misplaced := self._order.boundary(call_path(frame))) is not None:
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
            self._say(DEAD, *values)
        self.dead = dead
        self._misuse["dead"] = next(iter(dead.values()), "")

    def _look_for_unregistered(self, beside: Iterable[UnregisteredOptimizer]) -> None:
        ours: list[str] = []
        elsewhere: list[str] = []
        for other in beside:
            other.turns += 1
            if not other.owners.isdisjoint(self.dead):
                continue  # the message for a dead optimizer tells more
            if other.turns >= (_TURNS if other.names else _TURNS_ELSEWHERE) and not other.warned:
                other.warned = True
                (ours if other.names else elsewhere).append(other.words)
        if ours:
            self._misuse.setdefault("unregistered", UNREGISTERED % few(ours))
            self._say(UNREGISTERED, few(ours))
        if elsewhere:
            self._say(ELSEWHERE, few(elsewhere))

    def _misplaced(self, misplaced: Misplaced) -> None:
        if misplaced.between:
            names = [self._name(key) for key in misplaced.after]
            values: tuple[str, ...] = (misplaced.boundary, " and ".join(sorted(names)), misplaced.step)
            message = BETWEEN
        else:
            values, message = (misplaced.boundary, misplaced.step), TOP
        self._misuse["order"] = message % values
        self._say(message, *values)

    def _name(self, key: int) -> str:
        if key in self._registered:
            return self._registered[key][0]
        return self._others[key].cls if key in self._others else "another"


def _weights_of(values: Mapping[str, Any]) -> ChangeDetector:
    """Return the trainable parameters of the registered modules as they are now."""
    modules = [each for each in values.values() if isinstance(each, nn.Module)]
    trained = {id(p): local(p) for module in modules for p in module.parameters() if p.requires_grad}
    weights = ChangeDetector([*trained.values()], [], [])
    weights.mark()
    return weights
