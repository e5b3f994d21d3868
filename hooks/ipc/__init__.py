"""Connection from the training process to the machine's agent, over a Unix socket. No module here imports torch.

`messages` and `agent_messages` define the messages, `protocol` their order. `client` is the thread that receives them. `failures` finds what the
agent is told of a training that stands still or ends. `threads` owns the threads of this process, `interpreter_lock` lets them run.
"""
