"""Every method on every family as one ONNX graph: the outputs of onnxruntime are the model's."""

import pytest
import torch

from foretoken.errors import BackboneError
from foretoken.exporting.checking import check, differences, expected_of
from foretoken.exporting.graph import Graph, traced
from foretoken.exporting.onnx_file import check_onnx, run_onnx, session_of, write_onnx

from support import tiny
from support.table import CELLS, adapted

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's exporter

REFUSED = ("t5", "bart", "led", "big_bird")
EXPORTED = [(method, family) for method, family in CELLS if family not in REFUSED]


# the third layer is one more of the first two, and tracing takes as long for each
FEWER = {
    "bert": {"num_hidden_layers": 2},
    "llama": {"num_hidden_layers": 2},
    "longformer": {"max_position_embeddings": 320},  # more than two blocks of its attention
}
TRACED = {"longformer": 200}  # tokens of the example: several blocks, as in `samples`
LONGER = {"longformer": ((1, 150), (2, 300))}  # documents and tokens


def graph_of(family, method, **changes):
    changes = FEWER.get(family, {}) | changes
    model = tiny.shaken(adapted(tiny.model(family, **changes), method, task_type="SEQ_CLS"))
    return Graph(model, None, has_probabilities=True).eval().requires_grad_(False)


def sample(family, size, length):
    """Return random documents; the second one is shorter, and only its real part is read."""
    generator = torch.Generator().manual_seed(size)
    ids = torch.randint(5, 100, (size, length), generator=generator)
    mask = torch.ones_like(ids)
    if size > 1:
        ids[1, length // 2 :], mask[1, length // 2 :] = tiny.config_of(family).pad_token_id, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow  # by default: tests/cli/test_export_documents.py
@pytest.mark.parametrize(("cell_method", "cell_family"), EXPORTED)
def test_onnxruntime_computes_what_the_model_does(cell_method, cell_family, tmp_path):
    graph = graph_of(cell_family, cell_method)
    program = traced(graph, sample(cell_family, 2, TRACED.get(cell_family, 12)))
    file = tmp_path / "model.onnx"
    write_onnx(program, file, inputs=["input_ids", "attention_mask"], outputs=graph.output_names)
    check_onnx(file)
    session = session_of(file, threads=1)
    others = [sample(cell_family, *size) for size in ((1, 7), (3, 29), (2, 40), *LONGER.get(cell_family, ()))]
    expected = expected_of(graph, others)
    assert differences(lambda one: run_onnx(session, one), others, expected) <= 1e-4


def test_a_decoders_prefix_is_a_constant_of_the_graph():
    """Its short pass is not in the graph: the layer is there once."""
    program = traced(graph_of("llama", "prefix-propagation", num_hidden_layers=1), sample("llama", 2, 12))
    attentions = [node for node in program.graph.nodes if "scaled_dot_product_attention" in str(node.target)]
    assert len(attentions) == 1


def test_a_graph_that_does_not_run_says_so():
    def run(_):
        raise ValueError("Integer division by zero")

    with pytest.raises(BackboneError, match=r"does not run .*\(Integer division by zero\): this model cannot"):
        check(run, [None], [{}])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["big_bird"])
def test_what_has_no_graph_for_every_length_says_so(family):
    with pytest.raises(BackboneError, match="documents of every length"):
        traced(graph_of(family, "prefix-propagation"), sample(family, 2, 20))
