"""The GRPOTrainer of a released verifiers, from its wheel, in that release's environment: as it is, or with some of its fixes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_debug.causes import stage_of
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers import Demands
from rlvr_debug.trainers.program import Fields, ProgramTrainer
from rlvr_debug.trainers.verifiers.fixes import faults_of_release, releases

FIELDS = Fields.read(Path(__file__).with_name("config.yaml"))


def config_of(settings: TrainingSettings, limit: int) -> dict[str, Any]:
    """Return keyword arguments of the release's GRPOConfig, but for places; limit is in tokens of a reply."""
    return {
        **FIELDS.of(settings),
        # a flag there
        "scale_rewards": settings.scale_rewards == "group",
        "max_tokens": limit,
    }


class _Verifiers(ProgramTrainer):
    name = "verifiers"
    command_keys = ("environment", "stall_seconds")
    taken_options = FIELDS.taken

    @property
    def stages(self) -> tuple[str, ...]:  # type: ignore[override] # what the fixes mend is read from their files
        """What our environment does for it, and what fixes mend."""
        mended = {
            stage_of(fault) for each in releases() for fault in faults_of_release(each).values()
        }
        return ("max_new_tokens", "score", *sorted(mended))

    def unmapped(self, training: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        return FIELDS.unmapped(training)

    def refused(self, demands: Demands) -> str:
        """The release is one that has fixes, and the case's faults are its own."""
        release = demands.command.get("environment", "")
        if release not in releases():
            return (
                f"key 'command.environment' is '{release}', expected a release with trainer verifiers: "
                f"{' or '.join(releases())}"
            )
        own = set(faults_of_release(release).values())
        for fault in demands.faults:
            if fault not in own and stage_of(fault) not in ("max_new_tokens", "score"):
                return (
                    f"key 'cases.{demands.case}.faults' has '{fault}', expected what {release} has: "
                    f"{', '.join(sorted(own))}"
                )
        return ""

    def venvs(self, command: Mapping[str, Any]) -> list[str]:
        return [command["environment"]]

    def words(self, command: Mapping[str, Any]) -> tuple[str, ...]:
        return ("python", "-m", "rlvr_debug.trainers.verifiers.program", command["environment"])


TRAINER = _Verifiers()
