"""The way of a save's bytes into the store, up to a checkpoint that counts. No module here imports torch, or knows the state.

`plan` decides which bytes go into which object. `upload` has the queue of a save: it puts the objects, and behind them what commits
them. `own_manifest` queues that, and commits for one rank; `publish` commits for several, and `peer_manifests` follows the others'
manifests. `cancel_scope` is the save's right to go on. `cleanup` removes what is not needed any more.
"""
