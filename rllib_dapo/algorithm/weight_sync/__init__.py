"""Weights from the learners into the runners' engines; `sync.WeightSync` is the way in."""
