"""Which part of a tensor this rank holds, and which ranks hold the same part: DTensor, FSDP2, DDP."""
