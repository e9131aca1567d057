"""Two processes take one step over all of their documents. Runs itself under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

OPTIONS = {
    "tokens": {"tokens_per_batch": 60, "gradient_accumulation_steps": 100},
    "documents": {"batch_size": 1, "gradient_accumulation_steps": 100},
}


def train_and_save(folder):
    from test_trainer import trained

    for name, options in OPTIONS.items():
        done = trained(Path(folder) / "checkpoints", "selective-prefix-tuning", **options)
        seen = next(entry for entry in done.watch.logs if "loss" in entry)
        torch.save((done.watch.gradients, seen["loss"]), Path(folder) / f"{name}-{os.environ['RANK']}.pt")


@pytest.mark.slow
def test_the_gradient_of_two_processes_is_that_of_all_documents_in_one_batch(tmp_path):
    from peft import get_peft_model
    from test_trainer import METHODS, documents, whole

    from support import tiny

    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parents[1])))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29613", __file__]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    model = tiny.shaken(get_peft_model(tiny.model("bert"), METHODS["selective-prefix-tuning"]())).double()
    every = list(range(len(documents())))
    # by documents accelerate gives one of them twice, so that both processes have as many
    for name, candidates in (("tokens", [every]), ("documents", [[*every, twice] for twice in every])):
        expected = [whole(model, rows) for rows in candidates]
        for rank in range(2):
            (gradients,), logged = torch.load(tmp_path / f"{name}-{rank}.pt")
            assert sum(agrees(gradients, logged, *item) for item in expected) == 1


def agrees(gradients, logged, loss, expected):
    same = [torch.allclose(gradients[name], value, rtol=1e-9, atol=1e-12) for name, value in expected.items()]
    return gradients.keys() == expected.keys() and all(same) and logged == pytest.approx(loss, rel=1e-9)


if __name__ == "__main__":
    train_and_save(sys.argv[1])
