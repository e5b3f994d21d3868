"""The first process of a machine of the test's own: `first.py SOCKET FOLDER NAME ADDRESS`, below `unshare` with new namespaces.

Loopback comes up with ADDRESS on it, and port 80 of that is listened at: the listening socket goes through SOCKET to the
test. The machine is called NAME; what its firmware and `/etc/hosts` say stands in FOLDER. It ends with this process,
whatever runs on it, and this with its stdin.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import island  # type: ignore[import-not-found]  # the script beside this one


def main(path: str, folder: Path, name: str, address: str) -> None:
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    island.show_firmware(str(folder / "dmi"))
    subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)
    with island.listen(address) as listening, socket.socket(socket.AF_UNIX) as test:
        test.connect(path)
        socket.send_fds(test, [b"!"], [listening.fileno()])
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # whoever loses its parent here is ours, and the kernel buries it
    print("up", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
