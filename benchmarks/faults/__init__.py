"""The blind benchmark: cases with a planted fault or none, studied by who cannot know which. docs/evidence.md."""
