"""Makes tests/golden/v3: a store with checkpoints of format version 3, whose manifests have their tensors as columns.

Run once, when the format was new (`python -m tests.golden.make_v3 FOLDER`, at the root of the repository), and kept since:
`test_golden.py` loads it for ever. Never run it again over v3: a new format version gets a folder and a script of its own.

The run is "golden", of two ranks. Attempts 1 and 2 are those of v1: step 5, step 8, step 9 which refers to step 8's objects,
step 10 without a manifest of rank 1. Attempt 3 has step 12 of level partial-extras: rank 1 had died.
"""

from __future__ import annotations

import sys

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.marker import put_manifest, put_marker
from spotguard.providers.stores.file import FileStore
from tests.golden import make_v1, make_v2


def main(folder: str) -> None:
    make_v1.main(folder)
    store = FileStore(folder)
    claim_attempt(store, make_v1.RUN, {"host": "a"}, incarnation="nonce-3", world=2, created=1_790_000_000.0)
    full = make_v1.write(store, CheckpointName(3, 12, 0), 0)
    lower = make_v2.write(store, CheckpointName(3, 12, 0), full)
    for manifest in lower:
        put_manifest(store, manifest)
    put_marker(store, lower, created=1_790_000_002.0)


if __name__ == "__main__":
    main(sys.argv[1])
