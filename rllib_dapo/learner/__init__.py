"""The update of the policy: RLlib's learners and module, micro-batches and learning rate."""
