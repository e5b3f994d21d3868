"""Which part of a tensor this rank holds, and which ranks hold the same: DTensor, FSDP2, DDP."""
