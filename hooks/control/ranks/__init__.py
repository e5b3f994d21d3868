"""This rank and the other ranks of its job: calls go out, and come in as saves.

`coordinator` is what the rest of the control uses. `callers` has the threads that send its calls.
"""
