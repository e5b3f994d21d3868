"""The helper's readings of the machine: memory, the CPU's quota and the clock (`host`), disks (`disk`), GPUs (`gpu`), the kernel's log.

`source` gives each of them a thread of its own, because each may hang.
"""
