"""Misuse that the script's own source and names show: they are read around `guard.step()`, and none of their code runs."""
