"""From a completion's text to its reward."""
