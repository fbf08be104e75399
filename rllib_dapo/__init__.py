"""DAPO as an RLlib algorithm."""
