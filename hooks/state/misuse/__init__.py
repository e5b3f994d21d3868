"""Training loops that would be saved wrongly: `step()` in the wrong place, optimizers that nobody registered."""
