"""Fills a record from verl's driver, which holds all that a step was made of."""
