"""Messages to systemd by sd_notify(3): the agent is ready, its status, it still lives, it ends.

Each message is one datagram to the socket that systemd names in the environment. The protocol is a line of text, and a
library for it would be the agent's third dependency.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger("spotguard.agent")

_SOCKET, _USEC, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Manager:
    """The service manager that started the agent. No method waits or raises: the agent also works without the manager."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        """Open a datagram socket, if there is a manager.

        Args:
            address: a path, or a name in the abstract namespace that begins with @. "": there is no manager.
            watchdog: seconds of silence after which systemd assumes that the agent hangs, and starts it again.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None
        )
        #: Half of the watchdog's seconds, as sd_watchdog_enabled(3) recommends; None: systemd expects no sign of life.
        self._every = None if watchdog is None else watchdog / 2
        self._fed_at = 0.0
        self._status = ""

    @classmethod
    def take(cls, env: MutableMapping[str, str], pid: int) -> Manager:
        """Return the manager that `env` names, or `NOBODY`, and remove its variables from `env`.

        The variables mean nothing to the guarded command, and systemd would take its messages for the agent's.
        """
        address, usec, wanted = (env.pop(name, "") for name in (_SOCKET, _USEC, _PID))
        if not address.startswith(("/", "@")):
            return NOBODY
        # A container's manager may pass its variables to all processes. WATCHDOG_PID names the one process that must report.
        meant = not wanted or wanted == str(pid)
        return cls(address, int(usec) / 1e6 if meant and usec.isdecimal() and int(usec) else None)

    def ready(self, now: float) -> None:
        """Report that start-up is over, so that systemd starts the units ordered after the agent."""
        self._say("READY=1")
        self.live(now)

    @property
    def next_sign(self) -> float | None:
        """Monotonic seconds at which `live` is due."""
        return None if self._every is None else self._fed_at + self._every

    def live(self, now: float) -> None:
        """Report that the loop still turns, if that is due. Only the loop calls this, so that a loop that hangs is silent."""
        due = self.next_sign
        if due is not None and now >= due:
            self._fed_at = now
            self._say("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Send the text that `systemctl status` shows, if it has changed."""
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
        except OSError as error:  # systemd is gone, or does not read and the kernel's queue is full
            logger.debug("systemd does not hear %s: %s", line, error.strerror)


#: The manager of an agent that no service manager started: it sends nothing.
NOBODY = Manager("")


def going_down() -> bool:
    """Return whether the system is on its way to power-off or reboot, by systemd (systemctl(1), is-system-running)."""
    import subprocess  # once, at the SIGTERM of a service

    if not os.path.isdir("/run/systemd/system"):
        return False
    try:
        answer = subprocess.run(
            ["systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning(
            "systemd does not report whether this machine shuts down (%s): assuming that it does not", error
        )
        return False
    return answer.stdout.strip() == "stopping"
