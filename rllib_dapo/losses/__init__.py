"""The mathematics of the update as pure functions; torch and numpy only."""
