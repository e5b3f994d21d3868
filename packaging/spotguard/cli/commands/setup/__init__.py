"""Commands that print what machines and clusters need: `bootstrap`, `deploy`."""
