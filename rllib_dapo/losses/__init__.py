"""The mathematics of the update as pure functions, with torch and numpy only."""
