"""Answers of a check, made up: what a page shows of one, and what a verdict makes of it."""

from typing import Any

from rlvr_debug.causes import hypothesis_names
from rlvr_debug.replay.consequences import CONSEQUENCES
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import segments_for

# those that a check can speak of
CAUSES = tuple(slug for slug in hypothesis_names() if segments_for(slug))


def case_answer(*present: str, unseen: bool = False, said: str = "") -> dict[str, Any]:
    """Return the answer of a check in which the mechanisms of these hypotheses are there, and no others.

    unseen: all other segments were not seen. said: the note of each segment, and what stands beside a consequence.
    """
    names: dict[str, list[dict[str, str]]] = {}
    for slug in present:
        names.setdefault(segments_for(slug)[0], []).append({"name": f"as {slug}", "cause": slug})
    other = "not seen" if unseen else "agrees"
    segments = [
        {
            "segment": segment.name,
            "status": "deviates" if segment.name in names else other,
            "share": 10.0 if segment.name in names else 0.25,
            "deviation": 0.5,
            "names": names.get(segment.name, []),
            "note": said,
            "causes": [each["cause"] for each in names.get(segment.name, [])],
        }
        for segment in SEGMENTS
    ]
    consequences = [
        {
            "name": name,
            "measured": {"share": 0.25},
            "bound": said,
            "reason": said,
            "passed": True,
            "said": said,
            "fix": said,
        }
        for name in CONSEQUENCES
    ]
    deviating = [each["segment"] for each in segments if each["status"] == "deviates"]
    return {
        "trainer": "own",
        "generations": 3,
        "updates": 3,
        "first": deviating[0] if deviating else None,
        "later": deviating[1:],
        "answer": said or "made up.",
        "names": [],
        "hypotheses": list(present),
        "next": "",
        "segments": segments,
        "consequences": [] if unseen else consequences,
        "remarks": [],
        "notes": [],
        "tokens": [],
        "prompt": None,
    }


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
        "later": ["gradient"],
        "answer": f"loss: the sign is reversed. {said}.",
        "names": names,
        "hypotheses": ["gradient-explosion"],
        "next": "gradient-explosion: mend it.",
        "remarks": [said],
        "consequences": [
            {
                **dict.fromkeys(("name", "bound", "reason", "said", "fix"), said),
                "measured": {"share": 0.25},
                "passed": False,
            }
        ],
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
        "prompt": said,
        "seconds": {"check": 1.0},
    }
