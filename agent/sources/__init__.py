"""Where notices come from: `factory` opens the sources of this machine, `poller` asks one on a thread of its own."""
