"""An answer of a check in which a segment deviates, made up: what a page shows of it."""

from __future__ import annotations

from typing import Any

__all__ = ["deviating_answer"]


def deviating_answer(said: str) -> dict[str, Any]:
    """Return an answer whose texts, wherever a user or a model may have written them, are `said`."""

    def segment(name: str, status: str, **told: Any) -> dict[str, Any]:
        plain = {"share": 0.0, "deviation": 0.0, "names": [], "note": "", "causes": []}
        return {"segment": name, "status": status, "seconds": 0.1, **plain, **told}

    names = [{"name": "the sign is reversed", "cause": "gradient-explosion"}]
    return {
        "trainer": said,
        "generations": 1,
        "updates": 2,
        "first": "loss",
        "answer": f"loss: the sign is reversed. {said}.",
        "names": names,
        "hypotheses": ["gradient-explosion"],
        "next": "gradient-explosion: mend it.",
        "remarks": [said],
        "segments": [
            segment("prompt", "not seen", note=said),
            segment("tool turns", "none"),
            segment("advantages", "agrees", share=0.25),
            segment("loss", "deviates", share=None, names=names, note=said),
            segment("gradient", "deviates", share=12.5),
        ],
        "notes": [said],
        "tokens": [
            {
                "generation": 1,
                "row": 2,
                "tokens": ["first", " second ", "third", said],
                "places": [2, 7],
            },
        ],
        "seconds": {"check": 1.0},
    }
