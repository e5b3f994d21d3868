"""The losses of one rank. Read in this order: `detector` judges them, `watch` takes them from the script."""
