"""Every setting: its type, bounds, unit, default and meaning, defined once."""
