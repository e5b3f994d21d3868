"""Where checkpoints lie. `base` is what a store can do, `url` and `names` how one is written, `factory` opens it; then one a cloud, and a folder.

An SDK is imported when an URL asks for it, never before.
"""
