"""What a cloud says and holds: notices come up, blobs go down.

The law of this room: it uses nothing of ours outside itself. Foreign words (status codes, wall-clock times,
an SDK's exceptions) are turned into our own values here, once, and go no further.

Begin with `notice` and `health`, which `clouds` makes; then `stores`. `simulator` is a cloud's other end, for demos and tests.
"""
