"""Registered torch optimizers.

`optimizer` has the part. `gradients` tells which parameters have one, also for an optimizer with its own `state_dict`. `merge` makes
one saved tree of those of several ranks, and `optimizer_tree` knows the form of such a tree. `target_memory` has the memory that a restore reads it into. `running_products` repeats what DeepSpeed's Adam keeps in C++.
"""
