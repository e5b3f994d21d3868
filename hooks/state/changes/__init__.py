"""Whether the state stood still since the last boundary, and while it was read.

`change_detector` looks at tensors' versions and addresses, `audit` at checksums of memory, a slice at each boundary.
"""
