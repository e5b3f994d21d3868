"""The setup of a machine from a launch template: cloud-init user-data, systemd units and access policies.

`plan` checks the request. `options` checks the options of `run`, `requirement` the lines for pip, `variables` unexpanded
variables, and `program` the command. `warnings` finds valid requests that are probably mistakes. `render` prints the plan for a
cloud, with `advice` at its top. The machine runs `setup.sh`, with the units of `systemd-units/` out of the wheel that it has
installed. `iam_policy` prints a file of `iam-policies/`: the permissions that the machine's identity needs in the store.
"""

from __future__ import annotations
