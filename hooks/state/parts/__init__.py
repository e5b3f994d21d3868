"""One registered value each: a module, an optimizer, a loader, a generator, anything with `state_dict()`.

`registry` chooses the part; `values` has the protocol, and the parts of plain values.
"""
