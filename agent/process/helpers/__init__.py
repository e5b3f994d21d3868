"""Processes of spotguard's own beside the agent: what they load is too large for it, and what they wait for may hang."""
