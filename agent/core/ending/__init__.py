"""How a command or a service ends, and whether it starts again. `standstill` is about training that neither goes on nor ends."""
