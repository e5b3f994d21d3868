"""EC2's metadata service. `tree` has its keys, `maintenance` its scheduled events, `service` its answers, `cli` its flags."""
