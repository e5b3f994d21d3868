"""What registered values look like, and how a saved value meets the live one at its place.

`walk` says what a value holds. `frozen` copies values at a boundary, and notes the forms that it meets. `objects` stands for instances
of classes. `fit` fills the live values of a restore, and `ownership` says which memory it may write. `inner_tensors` has tensors
that are made of others. `ties` compares the tensors that share memory here with those that share it in a checkpoint.
`reachable` finds tensors that an object holds and no checkpoint has.
"""
