"""Azure's Instance Metadata Service. `document` has the list of Scheduled Events, `service` its answers, `cli` its flags."""
