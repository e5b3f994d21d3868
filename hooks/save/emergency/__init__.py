"""What is saved before a machine goes.

`emergency_save` is one rank's part of it, and what remains of one call of the ranks for the next. `save_budget` decides for a single
process what fits into the remaining time, by the rules of `budget`.
"""
