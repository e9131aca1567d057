"""WikiHop and MedHop (QAngaroo v1.1): a question, candidate answers, and the documents to combine."""

from __future__ import annotations

from foretoken.data.problems import CANDIDATES
from foretoken.data.readers.user_data import CANDIDATE_FIELDS, candidates_from_rows, read_candidates
from foretoken.data.tasks.base import CLEAN, OFFICIAL, Task, from_files, from_hub


def _task(hop: str, masked: bool, title: str, summary: str, sizes: str) -> Task:
    name = f"{hop}-masked" if masked else hop
    suffix = ".masked.json" if masked else ".json"
    return Task(
        name=name,
        title=title,
        summary=summary,
        metric="accuracy",
        sizes=sizes,
        source=f"train{suffix}, dev{suffix} of qangaroo_v1.1.zip, https://qangaroo.cs.ucl.ac.uk",
        licence="CC BY-SA 3.0",
        reader=from_files(name, {"train": (f"train{suffix}",), "validation": (f"dev{suffix}",)}, read_candidates),
        hub=from_hub(
            "community-datasets/qangaroo",
            CANDIDATE_FIELDS,
            candidates_from_rows,
            config=f"masked_{hop}" if masked else hop,
        ),
        problem=CANDIDATES,
        folder=f"qangaroo_v1.1/{hop}",
        splits=(CLEAN, OFFICIAL),
    )


_WIKIHOP = "Questions whose answer needs several Wikipedia paragraphs, with candidate answers."
_MEDHOP = "Interactions of drugs, to be found by combining abstracts of Medline, with candidate drugs."
_MASKED = " Candidates are replaced by ___MASK<number>___ in all texts."

TASKS: tuple[Task, ...] = (
    _task("wikihop", False, "WikiHop", _WIKIHOP, "39,364 / 4,374 / 5,129"),
    _task("wikihop", True, "WikiHop, masked", _WIKIHOP + _MASKED, "39,364 / 4,374 / 5,129"),
    _task("medhop", False, "MedHop", _MEDHOP, "1,458 / 162 / 342"),
    _task("medhop", True, "MedHop, masked", _MEDHOP + _MASKED, "1,458 / 162 / 342"),
)
