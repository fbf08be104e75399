"""Grading: find the final answer in a completion and compare it with the gold."""
