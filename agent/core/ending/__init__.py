"""How a command or a service ends, and whether it starts again."""
