"""The local copy of the state for a background checkpoint, so that training goes on during the upload.

`local_copies` chooses between two ways. `stage_writer` copies to a disk of this machine, if there is one for it. Else `snapshot`
copies to host memory.
"""
