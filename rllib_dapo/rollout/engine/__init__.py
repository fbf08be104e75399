"""Inference engines and how their weights are replaced; all that imports vLLM is here."""
