"""Checks of the promises: a study attacked from the outside."""
