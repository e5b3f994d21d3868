"""The numbers that the script gives: losses, and metrics of its own.

Read in this order: `detector` judges losses, `readback` reads numbers without waiting for a device, `watch` joins both, and
`metrics` keeps the script's own numbers.
"""
