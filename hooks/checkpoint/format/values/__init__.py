"""Typed JSON for all values that are not tensors.

`encoder` writes it, `decoder` reads it, and `sameness` compares values.
"""
