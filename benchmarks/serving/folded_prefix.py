"""What a folded prefix costs a token that is written: transformers' generate without it and with it, in turn.

    python -m benchmarks.serving.folded_prefix [--output benchmarks/results/folded-prefix.json] [--rounds 9]

A GPT-2 of the published shape with random weights writes 64 tokens after prompts of 128 tokens, alone and in batches of
eight. Prefix-tuning's prefix is folded into the beginning of the key-value cache, which is part of what is timed, and
the adapter itself is measured beside it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from benchmarks.suite.machine import hardware, versions
from benchmarks.suite.measure import compare
from peft import get_peft_model

import foretoken
from foretoken.files import write_json

PROMPT, WRITTEN = 128, 64


def measure(documents: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a token for a batch of so many prompts."""
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    config = foretoken.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=options.prefix_length)
    adapted = get_peft_model(copy.deepcopy(plain), config).eval()
    ids = torch.randint(5, 50_000, (documents, PROMPT))
    mask = torch.ones_like(ids)
    told = {"do_sample": False, "max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "pad_token_id": 0}

    def folded() -> torch.Tensor:
        return plain.generate(ids, **foretoken.prefix_inputs(adapted, mask), **told)

    own = partial(adapted.generate, input_ids=ids, attention_mask=mask, **told)
    if not torch.equal(folded(), own()):
        raise SystemExit("the folded prefix writes another text than the adapter")
    without = partial(plain.generate, ids, attention_mask=mask, **told)
    timings = compare(
        {"without": without, "folded": folded, "adapter": own}, rounds=options.rounds, seconds=float("inf")
    )
    first = [sample[0] for sample in timings["without"]["samples"]]
    beside = {
        name: statistics.median(one[0] / other for one, other in zip(timing["samples"], first, strict=True)) - 1
        for name, timing in timings.items()
    }
    seconds = {name: timing["median"] / WRITTEN for name, timing in timings.items()}
    return {"documents": documents, "seconds_of_a_token": seconds, "over_none": beside}


def main() -> None:
    """Measure and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results" / "folded-prefix.json")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prefix-length", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [measure(documents, options) for documents in (1, 8)]
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "versions": versions()}
    settings = {"prompt": PROMPT, "written": WRITTEN, "prefix_length": options.prefix_length, "rounds": options.rounds}
    write_json(options.output, facts | {"settings": settings, "results": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
