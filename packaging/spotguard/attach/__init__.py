"""`spotguard run --attach`: guard a training whose script has no line of spotguard.

`path` holds a `sitecustomize` that Python runs before the script. It loads `import_watch`, which waits for a framework's Trainer to be
imported, and `trainers` then attaches the adapter of `spotguard.integrations` as training begins.
"""
