"""How a command or a service ends, and whether it starts again. `stall_response` is about training that neither goes on nor ends."""
