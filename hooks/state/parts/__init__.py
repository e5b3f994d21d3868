"""One part for each registered value: a module, an optimizer, a loader, a generator, any object with `state_dict()`.

`registry` chooses the part. `values` has the protocol and the parts for plain values, and `tree` the form in which a part gives its
values. `module` and `optimizers` read tensors in place.
"""
