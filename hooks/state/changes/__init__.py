"""Checks that the state did not change since the last boundary, nor while a save read it.

`change_detector` compares tensors' versions and addresses. `audit` compares checksums of memory, one slice at each
boundary. `step_hooks` tells when a registered optimizer changes tensors.
"""
