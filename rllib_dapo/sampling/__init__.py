"""Which groups make a batch, and how they become one."""
