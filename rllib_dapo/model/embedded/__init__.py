"""The files of the embedded base model, which `scripts/tiny_math/make.py` writes."""
