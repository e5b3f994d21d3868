"""The socket to the machine's agent, from the training process.

`messages` are the messages, `protocol` says which may come when, `client` is the thread that listens. No torch.
"""
