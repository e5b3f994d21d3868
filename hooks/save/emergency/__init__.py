"""What is saved before a machine goes.

`emergency_save` is one rank's part of it. `save_budget` decides for a single process what fits into the remaining time, and
`agreed_saves` keeps for several ranks what remains of one call for the next.
"""
