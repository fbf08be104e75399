"""Rollouts: runners, their engines, dynamic sampling, and the token batch they end in."""
