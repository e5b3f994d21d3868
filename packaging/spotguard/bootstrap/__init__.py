"""A machine of a launch template, from its first boot to a guarded job: what cloud-init is given, the units, the policies.

`plan` is what was asked for, checked (`machines_options`: `run`'s; `requirement`: what pip is given; `doubts`: what is allowed
and probably not meant); `user_data` writes it down for a cloud, with `advice` at its top; `setup.sh` is what the machine then runs, with
`systemd/`'s units out of the wheel that it has installed. `policies/` is what the machine's identity may do in the store.
"""

from __future__ import annotations
