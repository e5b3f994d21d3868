"""Deployment files that `spotguard deploy` prints, for the user to own. spotguard ships them in `templates`."""
