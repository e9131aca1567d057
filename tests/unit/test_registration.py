"""Whatever is imported first, peft knows the methods once both are imported; foretoken alone imports no torch."""

import subprocess
import sys

import pytest

import foretoken

FOUND = "from peft import mapping; assert 'FORETOKEN_PREFIX_PROPAGATION' in mapping.PEFT_TYPE_TO_TUNER_MAPPING"


def run(code):
    """Run code in a fresh process and return its output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import foretoken, peft", marks=pytest.mark.slow),
        pytest.param("import peft, foretoken", marks=pytest.mark.slow),
        pytest.param("import foretoken.methods.prefix", marks=pytest.mark.slow),
        pytest.param("from foretoken import PrefixPropagationConfig", marks=pytest.mark.slow),
        pytest.param("import foretoken; from peft import PeftModel", marks=pytest.mark.slow),
        pytest.param("import foretoken.tuner", marks=pytest.mark.slow),
    ],
)
def test_peft_knows_the_methods_after(imports):
    run(f"{imports}; {FOUND}")


@pytest.mark.slow
def test_a_module_is_loaded_as_without_the_hook():
    """peft knows the methods, the hook leaves no trace in the import system, and peft keeps its own loader."""
    run(
        f"import sys, foretoken, peft; {FOUND}; "
        "assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith('foretoken')]; "
        "assert type(peft.__spec__.loader).__module__ == '_frozen_importlib_external', peft.__spec__.loader; "
        "assert peft.__loader__ is peft.__spec__.loader"
    )


def test_importing_foretoken_alone_imports_no_heavy_library():
    heavy = {"torch", "transformers", "peft", "numpy", "datasets"}
    assert run(f"import sys, foretoken; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_dir_lists_the_public_names():
    assert set(foretoken.__all__) <= set(dir(foretoken))
    assert "PrefixPropagationConfig" in run("import foretoken; print(dir(foretoken))")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "foretoken", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: foretoken VERB")
