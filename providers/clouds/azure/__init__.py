"""Azure's Scheduled Events. `imds` asks, `document` reads the answer, `tracker` knows the events again, `source` is the whole."""
