"""EC2's notices. `imds` sends requests with a token; `spot`, `autoscaling` and `events` each read one key, on `source`."""
