"""The text form of an agent's status answer: `view` is the whole, `sessions` its training processes."""
