"""The update: learner, learner group, micro-batches, learning-rate schedule."""
