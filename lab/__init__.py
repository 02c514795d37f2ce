"""The laboratory: what the project is built and tested with, and no user installs. Run from the project's root."""
