"""Every error that spotguard raises on purpose: one root, few leaves, each named for what the caller can do.

The module that meets a foreign exception (an SDK's, `requests`', `OSError`) translates it with `raise … from`.
The exception's type, status or errno decides, never the text of its message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from .text import printable


class SpotguardError(Exception):
    """The root of all errors. `str(error)` is one line: the value, what was expected, and the next step.

    The text may quote what anybody has written to a store, and goes to logs and terminals: it keeps no character that they obey.
    """

    #: Keys of the store's objects that are damaged or missing, if it is about any.
    objects: tuple[str, ...] = ()

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text, but="\n\t"))

    def about(self, objects: Iterable[str]) -> Self:
        """Note the keys of the damaged objects, and return the error."""
        self.objects = tuple(objects)
        return self


class UsageError(SpotguardError):
    """A value that the user gave (an option, a URL, an argument) cannot be used. Exit code 2 at the command line."""


class StateError(SpotguardError):
    """A registered object cannot be saved, or does not fit the checkpoint to restore from."""


class ProtocolError(SpotguardError):
    """A peer on the socket broke the protocol. Only that peer is dropped."""


class CheckpointError(SpotguardError):
    """A checkpoint is incomplete, damaged or missing."""


class StoreError(SpotguardError):
    """A blob store did not carry out a request. The leaves and the code tell what a retry needs.

    Args:
        text: the message.
        code: the service's own code; the HTTP status as text if the answer has none, the name of an errno for a directory.
    """

    #: Whether the same request may succeed when it is sent again.
    transient = False

    def __init__(self, text: str = "", code: str = "") -> None:
        super().__init__(text)
        self.code = code


class NotFoundError(StoreError):
    """No object has this key, or the bucket or directory does not exist."""


class DeniedError(StoreError):
    """The store refuses access: credentials, permissions, a read-only file system."""


class FullError(StoreError):
    """The store has no room: a full disk, an exhausted quota."""


class MisconfiguredError(StoreError):
    """The store's endpoint, proxy or certificates are set wrongly on this machine."""


class NotSupportedError(StoreError):
    """The service does not know this kind of request, such as a conditional create."""


class ThrottledError(StoreError):
    """The store receives too many requests at the moment."""

    transient = True


class UnavailableError(StoreError):
    """The store cannot be reached, timed out, or failed internally."""

    transient = True


class CorruptError(StoreError):
    """The bytes that arrived are not the bytes that were sent."""


#: `EX_CONFIG` of sysexits.h. Not 75, and no code after which spotguard restarts a command.
EX_CONFIG = 78


class AllDamagedError(CheckpointError, SystemExit):
    """Every checkpoint of the run is damaged. If nothing catches it, the process ends with exit code 78."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EX_CONFIG


class RefusedError(CheckpointError):
    """An object's own code refuses the value that a checkpoint has for it.

    If the object accepts an older checkpoint, the refused one is damaged. If the object refuses all of them, another
    kind of object was registered: that is a `StateError`.
    """
