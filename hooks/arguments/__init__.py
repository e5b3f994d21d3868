"""What a script passes and the environment says, and how a script sees spotguard: read `settings`, then `names` and `speaker`."""
