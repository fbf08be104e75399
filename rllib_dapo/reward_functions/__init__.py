"""Rewards by composition: the user's functions found, called within limits, added up."""
