"""The agent beside the training process: it polls for notices, signals the job, waits for its commit and exits.

The law of this room: stay small and never go silent. The agent may use the hooks' protocol and the providers' notices
and clock. It never imports code that holds tensors, a store or a cloud's SDK. Callers pass the time in; everything
that happens is an event on one queue.

Read `events` and `actions` first: the inputs and the outputs of every decision. `core` decides; `loop` passes the events
to `core` and carries out the actions. `app` assembles an agent.
"""
