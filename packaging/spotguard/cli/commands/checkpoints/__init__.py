"""Commands about a store's checkpoints and runs: `ls`, `inspect`, `verify`, `export`, `prune`, `report`."""
