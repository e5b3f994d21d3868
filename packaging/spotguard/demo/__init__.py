"""`spotguard demo`: the whole way of a notice on simulated clouds, in about a minute.

The law of this room: nothing is staged. It uses what a user would use, and says so when the weights differ.
"""
