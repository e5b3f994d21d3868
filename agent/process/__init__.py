"""The guarded command: `program` finds it, `supervisor` starts and ends it, `terminal` hands it the terminal.

`proctree` finds the processes that the command left behind, and `memory` whether the kernel killed one.
`helpers` are spotguard's own processes beside the agent, and `drain` waits for them at its end.
"""
