"""The holder of a network that is one test's own, below `unshare --net --mount`: `island.py SOCKET DMI ADDRESS…`.

Loopback gets the addresses, and port 80 of each is listened at. The listening sockets go through SOCKET to the test, so
that what answers there lives in the test's own process. The folder DMI becomes what the firmware says. It all ends
with this process, and this with its stdin.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys


def listen(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    words = ["ip", "address", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo"]
    if family is socket.AF_INET6:
        words.append("nodad")  # until nobody is known to have it (RFC 4862 5.4), nobody could bind to it
    subprocess.run(words, check=True)
    return socket.create_server((address, 80), family=family, backlog=128)


def show_firmware(dmi: str) -> None:
    # The folder need not be there, and nothing can be made in /sys: so the one above it is ours.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/class"], check=True)
    shutil.copytree(dmi, "/sys/class/dmi/id")


def main(path: str, dmi: str, addresses: list[str]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    show_firmware(dmi)
    listening = [listen(address) for address in addresses]
    with socket.socket(socket.AF_UNIX) as test:
        test.connect(path)
        socket.send_fds(test, [b"!"], [each.fileno() for each in listening])
    print("listening", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
