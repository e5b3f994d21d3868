"""Files that come with an install and are the user's once printed: `spotguard deploy`. The files lie in `templates`."""
