"""Ballast: optimizer state that outlives the training process."""
