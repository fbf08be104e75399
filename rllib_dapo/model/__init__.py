"""The policy: loading, forward pass, LoRA, packed attention, sharding, the embedded model."""
