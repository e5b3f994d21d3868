"""Typed JSON for all values that are not tensors.

`encoder` writes it, `decoder` reads it, and `sameness` compares values. `foreign` and `foreign_readers` do so for values of numpy
and torch. `state_check` says, without either, whether the state of a checkpoint can be read.
"""
