"""What the documentation of TRL's GRPOTrainer shows, as scripts: only the model and the rows are others.

No argument is given that the documentation does not give, but for two: `use_cpu`, without which TRL's default precision asks
for a GPU, and a tokenizer that says how calls are written where TRL does not know the chat template.
"""
