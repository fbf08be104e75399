"""Data sets: load problems, mix and order them, and render them as prompts."""
