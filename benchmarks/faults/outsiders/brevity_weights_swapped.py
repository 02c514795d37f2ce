"""Task and brevity are mixed with each other's weight."""

STAGE = "score"
TASK, BREVITY = 0.1, 0.9  # meant: 0.9, 0.1


def implementation(rollout, environment):
    written = sum(len(s.ids) for s in rollout.segments if s.role == "assistant")
    most = environment.max_new_tokens * environment.max_turns
    brevity = max(0.0, 1.0 - written / most)
    return {name: TASK * float(part) + BREVITY * brevity for name, part in rollout.parts.items()}
