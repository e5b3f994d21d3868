"""What the doctor looks at, one thing each."""
