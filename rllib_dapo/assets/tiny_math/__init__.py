"""The embedded base model, the script that makes it and the one that measures it."""
