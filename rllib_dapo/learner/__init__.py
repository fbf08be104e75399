"""The update: the learners, what a batch needs before it, and the learning-rate schedule."""
