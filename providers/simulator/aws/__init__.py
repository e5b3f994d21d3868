"""EC2's metadata service. `tree` holds its keys, `maintenance` its scheduled events, `service` answers, `cli` has its flags."""
