"""Check anybody's trainer: a few recorded steps, each segment of which is computed again, held to its reference and named by variants."""
