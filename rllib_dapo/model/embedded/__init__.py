"""The files of the embedded base model; `scripts/tiny_math/make.py` makes them."""
