"""What systemd hears of us by sd_notify(3): that we are ready, what we do, that we still live, that we end.

One datagram each to the socket that systemd names in the environment. No library: the protocol is a line of text, and
the ones there are would be the agent's third dependency.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger("spotguard.agent")

_SOCKET, _USEC, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Manager:
    """The service manager that started us. Nothing here waits, and nothing here fails: guarding goes on without it."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        """
        Args:
            address: a path, or a name in the abstract namespace that begins with @. "": nobody listens.
            watchdog: seconds after which systemd takes a silent agent for one that hangs, and starts it again.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None
        )
        #: Half of it, as sd_watchdog_enabled(3) recommends; None: it is not asked for.
        self._every = None if watchdog is None else watchdog / 2
        self._fed_at = 0.0
        self._status = ""

    @classmethod
    def take(cls, env: MutableMapping[str, str], pid: int) -> Manager:
        """The one that `env` names, or nobody. Its variables go: to a command of ours they say nothing, and its word would be
        taken for ours."""
        address, usec, wanted = (env.pop(name, "") for name in (_SOCKET, _USEC, _PID))
        if not address.startswith(("/", "@")):
            return NOBODY
        # The manager of a container may hand its variables to all: what is meant for another process is not ours.
        meant = not wanted or wanted == str(pid)
        return cls(address, int(usec) / 1e6 if meant and usec.isdecimal() and int(usec) else None)

    def ready(self, now: float) -> None:
        """Start-up is over: what is ordered behind us begins."""
        self._say("READY=1")
        self.live(now)

    @property
    def next_sign(self) -> float | None:
        """Monotonic seconds at which `live` is due."""
        return None if self._every is None else self._fed_at + self._every

    def live(self, now: float) -> None:
        """Where it is due: the loop still turns. Said by the loop alone, so that one that hangs is silent."""
        due = self.next_sign
        if due is not None and now >= due:
            self._fed_at = now
            self._say("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows, said when it changes."""
        if text != self._status:
            self._status = text
            self._say("STATUS=" + " ".join(text.split()))

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _say(self, line: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(line.encode(), self._address)
        except OSError as error:  # it is gone, or does not read: the kernel's queue is full
            logger.debug("systemd does not hear %s: %s", line, error.strerror)


#: Who started us asks for no word.
NOBODY = Manager("")


def going_down() -> bool:
    """Whether this whole system is on its way to power-off or reboot, as systemd has it (systemctl(1), is-system-running)."""
    import subprocess  # once, at the SIGTERM of a service

    if not os.path.isdir("/run/systemd/system"):
        return False
    try:
        told = subprocess.run(
            ["systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("systemd does not say whether this machine goes down (%s): taken for no", error)
        return False
    return told.stdout.strip() == "stopping"
