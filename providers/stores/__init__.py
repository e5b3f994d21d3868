"""Checkpoint stores. `base` defines what a store can do, `url` and `names` parse and check its URL, `factory` opens it.

Each cloud has a folder here, and `file` keeps a store in a folder. An SDK is imported only when a URL asks for it.
"""
