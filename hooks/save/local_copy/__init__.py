"""The local copy of the state for a background checkpoint, so that training goes on during the upload.

`stage_writer` makes it on a disk of this machine, if there is one for it; else `snapshot` makes it in host memory.
"""
