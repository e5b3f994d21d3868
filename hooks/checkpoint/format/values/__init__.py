"""Typed JSON for everything that is not a tensor: `encoder` writes it, `decoder` reads it, `sameness` compares values."""
