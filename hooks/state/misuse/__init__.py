"""Training loops that would be saved wrongly: `guard.step()` in the wrong place, or optimizers that are not registered."""
