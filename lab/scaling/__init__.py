"""What GPUs a study of a real model would take, by arithmetic alone (docs/scaling.md)."""
