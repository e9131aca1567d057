"""The Node example of the guide answers as `foretoken predict` does."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from foretoken.exporting.export import export

from support.saved import save_adapter

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "export.md"
NEEDED = "require.resolve('onnxruntime-node'); require.resolve('@huggingface/tokenizers')"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _node():
    """Skip unless node finds both packages, in NODE_PATH for one; nothing is installed here."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", NEEDED], capture_output=True, check=False).returncode:
        pytest.skip("node, onnxruntime-node or @huggingface/tokenizers is missing")


@pytest.mark.parametrize("text", ["word1 prize word2", " ".join(["lunch", "word7"] * 40)])
def test_the_node_example_answers_as_predict_does(text, tmp_path, cli):
    source = save_adapter(tmp_path / "mail", max_length=20)
    export(source, tmp_path / "mail-onnx")
    (tmp_path / "app.js").write_text(re.search(r'```js title="app.js"\n(.*?)```', GUIDE.read_text(), re.DOTALL)[1])
    done = subprocess.run(["node", "app.js", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), json.loads(cli("predict", source, text).out)
    assert found["label"] == expected["label"]
    assert found["probability"] == pytest.approx(expected["probability"], abs=2e-5)
