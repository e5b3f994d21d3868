"""This rank and the other ranks of its job: calls go out, and come in as saves.

`coordinator` is what the rest of the control uses. It keeps the notices of all machines in `notices`, and the ranks whose part of
a save will not come in `failed_ranks`. `callers` has the threads that send its calls.
"""
