"""How a guarded process ends: by a SIGTERM, a notice or an error, and what is saved before."""
