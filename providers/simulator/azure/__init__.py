"""Azure's Instance Metadata Service. `document` is the list of Scheduled Events, `service` answers, `cli` has its flags."""
