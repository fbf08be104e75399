"""The `rllib` command: experiment files, console, transform-dataset."""
