"""Training loops that would be saved wrongly, or that make saves wait.

`step_monitor` watches the calls: `guard.step()` in the wrong place (`loop_order`), and optimizers that are not registered
(`unregistered`). `forgotten` finds what else takes part in training and is not registered.
`unsaved` finds state that no save could hold. `carried_gradient` finds optimizers that step on gradients of earlier turns.
`boundary_times` finds boundaries that come late or cost much. `turn_signs` tells whether a turn has begun in which the script saves,
restores, or begins another loop.
"""
