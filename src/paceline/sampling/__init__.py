"""Choosing tokens: filters, random numbers keyed by (seed, position), log probabilities."""
