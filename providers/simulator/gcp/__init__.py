"""Compute Engine's metadata server. `tree` holds its keys, `upcoming` host maintenance, `faults` what it does wrong; `service` answers, `cli` has its flags."""
