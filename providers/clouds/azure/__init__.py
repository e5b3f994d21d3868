"""Azure's Scheduled Events: `imds` sends requests, `document` parses answers, `tracker` matches events, `source` joins them."""
