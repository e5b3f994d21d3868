"""Every error spotguard raises on purpose: one root, few leaves, each named for what the caller can do.

Foreign exceptions (an SDK's, `requests`', `OSError`) are mapped at the seam that met them, with
`raise … from`, and decided by type, status or errno: never by the text of a message.
"""

from __future__ import annotations


class SpotguardError(Exception):
    """The root. `str(error)` is one line that names the value, what was expected and what to do."""


class UsageError(SpotguardError):
    """A value the user gave cannot be used: a flag, an URL, an argument. Exit code 2 at the command line."""


class StateError(SpotguardError):
    """A registered object cannot be saved, or does not fit the checkpoint that it should be restored from."""


class ProtocolError(SpotguardError):
    """A peer on the socket broke the protocol. That peer is dropped; nobody else notices."""


class CheckpointError(SpotguardError):
    """A checkpoint is not whole, is damaged, or is not there."""


class StoreError(SpotguardError):
    """A blob store did not do what it was asked. The leaves say whether asking again can help."""

    #: True where the same request may succeed when it is sent again.
    transient = False


class NotFoundError(StoreError):
    """No object has this key (or the bucket, or the folder, is not there)."""


class DeniedError(StoreError):
    """The store refuses us: credentials, permissions, a read-only file system."""


class FullError(StoreError):
    """No room: a disk without space, a quota that is used up."""


class ThrottledError(StoreError):
    """Too many requests for now."""

    transient = True


class UnavailableError(StoreError):
    """The store cannot be reached, timed out, or failed inside."""

    transient = True


class CorruptError(StoreError):
    """Bytes arrived that are not the bytes that were sent."""


#: `EX_CONFIG` of sysexits.h. Not 75, and no code after which anything here starts a command again.
EX_CONFIG = 78


class AllDamagedError(CheckpointError, SystemExit):
    """Every checkpoint of the run is damaged. Uncaught, it ends the process with exit code 78."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EX_CONFIG


class RefusedError(CheckpointError):
    """An object's own code refuses what a checkpoint has for it.

    The checkpoint is damaged if the object takes an older one. If the object refuses all of them, another kind of object was
    registered: that is a `StateError`.
    """
