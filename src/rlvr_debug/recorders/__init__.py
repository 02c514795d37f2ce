"""What fills a record from somebody's training: a folder for each trainer, which imports replay and nothing of the study."""
