"""`spotguard` with every socket that Python makes or names said on stderr, by the interpreter's own audit events."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from typing import Any


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        os.write(2, f"audit: {event} {socket.AddressFamily(arguments[1]).name}\n".encode())
    elif event.startswith("socket.") and event != "socket.gethostname":
        os.write(2, f"audit: {event} {arguments[1:]}\n".encode())


if __name__ == "__main__":
    sys.addaudithook(hear)
    runpy.run_module("spotguard", run_name="__main__")
