"""The kernel's account of memory: `counters` of use and limits, and `kills` while the command runs."""
