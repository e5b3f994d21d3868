"""Checkpoint stores. `base` defines what a store can do, `url` and `names` parse and check its URL, `factory` opens it.

Each cloud has a directory here, and `file` keeps a store in a directory. An SDK is imported only when a URL asks for it.
"""
