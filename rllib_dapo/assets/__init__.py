"""Files that ship with the package: the embedded base model."""
