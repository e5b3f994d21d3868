"""The helper's readings of the machine: free disks, memory, the CPU's quota and the clock (`host`), GPUs (`gpu`), the kernel's log.

`source` gives each of them a thread of its own, because each may hang.
"""
