"""The trainer cuts prompts from the left to its own maximum, after sampling."""

STAGE = "trained_prompt"
MAX_PROMPT_LENGTH = 4


def implementation(rollout, segment, env, chat):
    return list(segment.ids[-MAX_PROMPT_LENGTH:])
