"""What a fault of a simulated metadata service is to a source, whichever cloud's: blindness by its name, with a way out."""

from __future__ import annotations

from spotguard.providers.health import Sight
from spotguard.providers.notice import Sighting

#: By fault: the reason that every source gives, whatever it asks for.
EVERYWHERE = {
    "429": "throttled",
    "500": "server-error",
    "503": "server-error",
    "reset": "unreachable",
    "hang": "timeout",
    "slow": "timeout",
    "trickle": "timeout",
    "portal": "wrong-server",
    "redirect": "wrong-server",
    "huge": "wrong-server",
}

_NO_STATUS = ("reset", "hang", "slow")


def code_of(fault: str, answered: int) -> int:
    """The HTTP status that a source gives for a fault: of what comes drop by drop, the one at its head."""
    if fault == "trickle":
        return answered
    if fault[:3].isdigit():
        return int(fault[:3])
    return 302 if fault == "redirect" else 0 if fault in _NO_STATUS else 200


def assert_blind(sighting: Sighting, fault: str, reason: str, answered: int = 200) -> None:
    """Never "no notice", never a notice. `answered` is the status without the fault."""
    health = sighting.health
    assert sighting.notices == ()
    assert health.reason == reason
    # Under load the limit may pass before the head of what comes drop by drop.
    assert health.code == code_of(fault, answered) or (fault == "trickle" and health.code == 0)
    assert health.sight is (Sight.WRONG_SERVER if reason == "wrong-server" else Sight.BLIND)
    assert health.advice
