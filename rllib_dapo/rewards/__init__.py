"""From an answer's text to its reward."""
