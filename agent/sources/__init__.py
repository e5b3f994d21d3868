"""Sources of notices: `factory` opens the sources of this machine, `poller` polls one source on its own thread."""
