"""A soak: a real agent under faults, notices and clock jumps, all drawn by a seed, for as long as is wanted.

What must hold: each notice is heard within the time that the faults allow, nothing is heard that was not said, the
agent lives and stays as small as it was, and it asks no more often than the cloud allows.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from spotguard.agent.ipc.control import AgentError, status
from tests.e2e.harness import Machine
from tests.e2e.processes import Running, eventually
from tests.soak.clouds import Cloud, Way
from tests.soak.drift import Drift
from tests.soak.ear import Ear

#: Seconds by which the wall clock is ahead after a jump. A notice that stood before the agent came is read by that clock
#: alone, so there it is off by no more than a minute.
_JUMPS = (-3600.0, -60.0, -5.0, 0.0, 5.0, 60.0, 3600.0)
_SMALL_JUMPS = (-60.0, -5.0, 0.0, 5.0, 60.0)

#: MiB by which the agent may have grown from the first quarter of its life to the last, and at its very most. One arena of
#: Python's allocator is 1 MiB (3.12): in twenty seconds the first look at something new may take one.
_GROWTH, _PEAK = 2.0, 4.0


class Soak:
    """One cloud's.

    Args:
        lives: the agent is ended and begun anew every few notices, of which some stand before it comes.
    """

    def __init__(self, name: str, cloud: Cloud, folder: Path, seed: int, *, lives: bool) -> None:
        self._name = name
        self._cloud = cloud
        self._lives = lives
        self._rng = random.Random(f"{name}/{lives}/{seed}")
        self._machine = Machine(folder)
        self._socket = self._machine.runtime / "agent.sock"
        self._drift = Drift(folder)
        self._simulator = cloud.simulator()
        self._agent: Running | None = None
        self._ear: Ear | None = None
        self._end = self._faults_end = self._said_at = 0.0
        self._longest = 1.0
        #: Megabytes, as time goes on.
        self._weights: list[float] = []
        self._started = 0.0
        #: What was done and heard, for who reads why a soak failed.
        self.story: list[str] = [f"{name}, seed {seed}, {'many lives' if lives else 'one life'}"]
        self.rounds = 0

    def run(self, seconds: float) -> None:
        """Raises AssertionError with the whole story where anything did not hold."""
        self._started = time.monotonic()
        self._end = self._started + seconds
        self._longest = min(20.0, seconds / 8)
        try:
            with self._simulator:
                while time.monotonic() < self._end:
                    self._live()
            self._check_requests(time.monotonic() - self._started)
        except BaseException as error:
            said = self._agent.err.text[-4000:] if self._agent is not None else ""
            raise AssertionError(
                "\n".join([str(error), *self.story, "the agent's last words:", said])
            ) from error
        finally:
            if self._ear is not None:
                self._ear.close()
            self._machine.close()
            self._drift.close()

    def stop(self) -> None:
        """Begin no other round."""
        self._end = 0.0

    # --- one life of the agent ---

    def _live(self) -> None:
        ways = [way for way in self._cloud.ways if self._lives or not way.last]
        left = self._rng.randint(1, 3) if self._lives else 1_000_000
        if self._lives and self._rng.random() < 0.4:
            way, left = self._choice(ways), left - 1
            self._say(way)
            self._begin()
            self._said_at = time.monotonic()  # to nobody before that
            self._hear(way)
            if way.last:
                left = 0
            else:
                self._take_back(way)
        else:
            self._begin()
        while left and time.monotonic() < self._end:
            left = 0 if self._round(self._choice(ways)) else left - 1
        if not self._lives and (last := [way for way in self._cloud.ways if way.last]):
            self._round(last[0])
        self._finish()

    def _choice(self, ways: list[Way]) -> Way:
        """What is seen soon comes more often: as much of the time is for each."""
        return self._rng.choices(ways, [1 / way.within for way in ways])[0]

    def _begin(self) -> None:
        if self._rng.random() < 0.5:
            self._fault()
        words = ("agent", "--provider", self._name, "--socket", str(self._socket))
        self._agent = self._machine.start(
            *self._drift.command, *words, "--metadata-endpoint", self._simulator.endpoint
        )
        eventually(self._answers, f"{self._name}: the agent answers")
        self._ear = Ear(self._socket)
        self._note("an agent has begun")

    def _answers(self) -> bool:
        try:
            return bool(status(self._socket))
        except AgentError:
            return False

    def _finish(self) -> None:
        """The end of a life, in good weather: every source sees, nothing went wrong unsaid, and SIGTERM ends it."""
        assert self._agent is not None
        assert self._ear is not None
        self._simulator.clear()
        assert self._ear.wait_for(lambda: self._ear and self._ear.seeing, 60.0), (
            f"still blind in good weather: {self._ear.blind} {self._ear.ended}"
        )
        if not self._lives:
            self._check_memory(self._agent.pid)
        self._ear.close()
        self._agent.send(signal.SIGTERM)
        assert self._agent.ended() == 0
        said = self._agent.err.to_the_end()
        assert "Traceback" not in said
        assert "an error of the agent" not in said
        self._ear = self._agent = None
        self._note("it has ended")

    # --- one notice ---

    def _round(self, way: Way) -> bool:
        """A notice in whatever weather; whether the machine has no life after it."""
        self.rounds += 1
        if self._rng.random() < 0.75:
            for _ in range(self._rng.randint(1, 3)):
                self._fault()
        self._pass(self._rng.uniform(0.0, self._longest))
        self._jump()
        assert self._ear is not None
        assert not self._ear.notices, f"heard what was never said: {self._ear.notices}"
        self._ear.begin_page()
        self._say(way)
        if self._rng.random() < 0.3:
            self._fault()
        self._hear(way)
        assert self._agent is not None
        self._weights.append(_memory(self._agent.pid, "VmRSS"))
        if not way.last:
            self._jump()
            self._take_back(way)
        return way.last

    def _say(self, way: Way) -> None:
        way.say(self._simulator, self._rng)
        self._said_at = time.monotonic()
        self._note(f"said: {way.kind or 'what concerns another machine'}")

    def _hear(self, way: Way) -> None:
        """It is heard in time, and what it was hidden by was said; or, where it is no matter of ours, nothing is heard."""
        ear = self._ear
        assert ear is not None
        if not way.kind:
            self._pass(self._rng.uniform(0.5, self._longest))
            return
        left = max(self._said_at, self._faults_end) + way.within - time.monotonic()
        assert ear.wait_for(lambda: ear.notices, left), f"{way.kind} was missed; {ear.ended} {ear.blind}"
        took = time.monotonic() - self._said_at
        self._note(f"heard after {took:.2f} s: {', '.join(sorted({notice.id for notice in ear.notices}))}")
        assert took <= way.within or ear.was_blind, (
            "it was hidden for long, and every source said that it sees"
        )

    def _take_back(self, way: Way) -> None:
        """From here on it must not be shown anew."""
        ear = self._ear
        assert ear is not None
        self._pass(self._rng.uniform(0.0, 2.0))
        # What is far off goes and comes again where the clock says that it was put off, or a 404 that it is not there.
        ends = {notice.id for notice in ear.notices if notice.severity == "terminal"}
        assert not ends & set(ear.gone), f"{ear.gone} withdrawn, and nobody had taken it back"
        assert not way.kind or ear.wait_for(lambda: ear.standing, way.within), (
            f"{ear.gone} withdrawn for good"
        )
        way.take_back(self._simulator, self._rng)
        taken_back = time.monotonic()
        self._note("taken back")
        if way.withdraws:
            left = max(time.monotonic(), self._faults_end) + way.within - time.monotonic()
            assert ear.wait_for(lambda: not ear.standing, left), f"never withdrawn: {ear.standing}"
        if way.empties:
            while not self._seen_empty(way.empties, max(taken_back, self._faults_end)):
                assert time.monotonic() < max(taken_back, self._faults_end) + way.within, "nobody looks"
                self._pass(0.5)
        # A look may have read it right before: let that be told.
        self._pass(0.5)
        assert way.withdraws or not ear.gone, f"{ear.gone} withdrawn, though this cloud never says so"
        others = [notice for notice in ear.notices if notice.kind != way.kind]
        assert not others, f"heard what was never said: {others}"
        ear.begin_page()

    def _seen_empty(self, key: str, since: float) -> bool:
        """Whether a look has met this key's 404, in good weather."""
        return any(
            seen.status == 404 and seen.at > since and seen.path.endswith(key)
            for seen in self._simulator.requests
        )

    # --- the weather ---

    def _fault(self) -> None:
        kind, seconds = self._rng.choice(self._cloud.faults), self._rng.uniform(0.2, self._longest)
        self._simulator.fault(kind, seconds=seconds)
        self._faults_end = max(self._faults_end, time.monotonic() + seconds)
        self._note(f"fault: {kind} for {seconds:.1f} s")

    def _jump(self) -> None:
        if self._rng.random() < 0.4:
            ahead = self._rng.choice(_SMALL_JUMPS if self._lives else _JUMPS)
            self._drift.jump(ahead)
            self._note(f"the clock is {ahead:g} s ahead")

    def _pass(self, seconds: float) -> None:
        """Let time go by, unless the agent ends in it."""
        assert self._ear is not None
        self._ear.wait_for(lambda: False, seconds)
        assert not self._ear.ended, self._ear.ended

    # --- what it has cost ---

    def _check_memory(self, pid: int) -> None:
        quarter = max(1, len(self._weights) // 4)
        first, last = max(self._weights[:quarter]), min(self._weights[-quarter:])
        peak = _memory(pid, "VmHWM")
        self._note(f"memory: {first:.1f} MiB at first, {last:.1f} at last, {peak:.1f} at most")
        assert last - first <= _GROWTH, f"it has grown: {self._weights}"
        assert peak - first <= _PEAK, f"it was once much larger: {peak:.1f} MiB"

    def _check_requests(self, seconds: float) -> None:
        times = sorted(seen.at for seen in self._simulator.requests)
        most = max(sum(1 for at in times[i:] if at < start + 1.0) for i, start in enumerate(times))
        mean = len(times) / seconds
        self._note(f"requests: {len(times)}, {mean:.2f} a second, {most} within one at most")
        if not self._lives:  # each life may begin with some more
            assert most <= self._cloud.most, f"{most} requests within one second"
            assert mean <= self._cloud.mean, f"{mean:.2f} requests a second"

    def _note(self, line: str) -> None:
        self.story.append(f"{time.monotonic() - self._started:7.2f} s  {line}")


def _memory(pid: int, line: str) -> float:
    """A line of /proc/<pid>/status in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(each.split()[1]) / 1024 for each in text.splitlines() if each.startswith(line))
