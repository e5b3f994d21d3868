"""Checkpoints for other tools: `torch.distributed.checkpoint` (`dcp_reader`, `dcp_export`) and safetensors."""
