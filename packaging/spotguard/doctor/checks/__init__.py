"""The doctor's checks, one thing each."""
