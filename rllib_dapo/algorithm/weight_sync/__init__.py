"""How the learner's weights reach the engines, and how that is checked."""
