"""The command: `program` finds it, `supervisor` starts and ends it, `terminal` lends it the keyboard, `proctree` finds what it left behind."""
