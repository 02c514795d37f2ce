"""The GRPOTrainer of a released verifiers, from its wheel, in that release's environment: as it is, or with some of its fixes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.causes import stage_of
from rlvr_debug.errors import InputError
from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.verifiers.config import FIELDS
from rlvr_debug.trainers.verifiers.fixes import faults_of_release, releases

if TYPE_CHECKING:
    from rlvr_debug.study.model import Params


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

    def check(self, params: Params, path: Path) -> None:
        """Beside what every trainer asks: the release is one that has fixes, and the case's faults are its own."""
        release = params.command.environment
        if release not in releases():
            raise InputError(
                f"{path}: key 'command.environment' is '{release}', expected a release with trainer verifiers: "
                f"{' or '.join(releases())}"
            )
        own = set(faults_of_release(release).values())
        case = params.cases.get(params.case)
        for fault in case.faults if case else ():
            if fault not in own and stage_of(fault) not in ("max_new_tokens", "score"):
                raise InputError(
                    f"{path}: key 'cases.{params.case}.faults' has '{fault}', expected what {release} has: "
                    f"{', '.join(sorted(own))}"
                )
        super().check(params, path)

    def venvs(self, command: Mapping[str, Any]) -> list[str]:
        return [command["environment"]]

    def words(self, command: Mapping[str, Any]) -> tuple[str, ...]:
        return ("python", "-m", "rlvr_debug.trainers.verifiers.program", command["environment"])


TRAINER = _Verifiers()
