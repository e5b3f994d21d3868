"""Commands that try before the real notice: `doctor`, `prove`, `simulate`, `demo`."""
