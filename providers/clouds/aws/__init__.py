"""EC2's notices. `imds` asks, with a token; `spot`, `autoscaling` and `events` each read one part of its tree, on `source`."""
