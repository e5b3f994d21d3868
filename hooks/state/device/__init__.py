"""Accelerators: how far each has come (`events`), copies beside its kernels (`streams`), and the host memory for them.

`host_buffer` has the buffers in which objects are put together, also for state in host memory.
"""
