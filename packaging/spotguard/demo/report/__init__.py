"""The page that the demo leaves: `picture` draws the day, `html` writes it, on `chart` and `svg`; `summary` keeps the figures."""
