"""Cloud providers: notices come from metadata services, checkpoints go to blob stores.

The law of this room: it imports nothing of spotguard outside itself. It translates foreign values (status codes,
wall-clock times, an SDK's exceptions) into spotguard's own, once, here. No other room sees the foreign values.

Begin with `notice` and `health`, which `clouds` produces; then read `stores`. `simulator` is the server side of a
metadata service, for demos and tests.
"""
