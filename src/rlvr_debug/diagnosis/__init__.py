"""From the logs of a user's own run to the hypotheses worth an experiment, and the cheapest next one."""
