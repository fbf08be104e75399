"""DAPO as an RLlib algorithm: configuration, training step, checks, weight sync."""
