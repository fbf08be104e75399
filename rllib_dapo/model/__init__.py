"""The policy: loading, LoRA, packed attention, sharding, the embedded base model."""
