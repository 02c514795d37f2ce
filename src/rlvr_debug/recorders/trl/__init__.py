"""The recorder of TRL's GRPOTrainer and its subclasses."""
