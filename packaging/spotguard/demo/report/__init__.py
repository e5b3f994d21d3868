"""The demo's report: `html` writes the page, with the picture of `picture` (on `chart`, `clockwork`, `svg`) and `summary`."""
