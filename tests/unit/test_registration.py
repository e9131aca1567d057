"""Whatever is imported first, peft knows the methods once both are imported; foretoken alone imports no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import foretoken

from support.saved import save_adapter

SOURCE = Path(foretoken.__file__).parents[1]
FOUND = "from peft import mapping; assert 'FORETOKEN_PREFIX_PROPAGATION' in mapping.PEFT_TYPE_TO_TUNER_MAPPING"
EARLY = "import foretoken; from transformers import TrainerCallback"  # which imports peft before it is complete
OTHERS = (
    *("import foretoken, peft", "import peft, foretoken", "import foretoken.methods.prefixes.prefix"),
    *("from foretoken import PrefixPropagationConfig", "import foretoken; from peft import PeftModel"),
    *("import foretoken.tuner", "import foretoken; from transformers import Trainer"),
)


def run(code):
    """Run code in a fresh process and return its output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("imports", [EARLY, *(pytest.param(code, marks=pytest.mark.slow) for code in OTHERS)])
def test_peft_knows_the_methods_after(imports):
    run(f"import warnings; warnings.simplefilter('error', UserWarning); {imports}; {FOUND}")


@pytest.mark.slow
def test_a_module_is_loaded_as_without_the_hook():
    """peft knows the methods, the hook leaves no trace in the import system, and peft keeps its own loader."""
    run(
        f"import sys, foretoken, peft; {FOUND}; "
        "assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith('foretoken')]; "
        "assert type(peft.__spec__.loader).__module__ == '_frozen_importlib_external', peft.__spec__.loader; "
        "assert peft.__loader__ is peft.__spec__.loader"
    )


INSTALLED = f"import site, sys; site.addsitedir({str(SOURCE)!r})"  # as Python does with the installed packages' folder


@pytest.mark.slow
def test_a_program_that_never_imports_foretoken_loads_its_adapters(tmp_path):
    """The file that is installed beside the packages does it, also where a library has looked for peft before."""
    folder = save_adapter(tmp_path / "adapter")
    run(
        f"{INSTALLED}; assert 'foretoken' not in sys.modules\n"
        "import importlib.util; importlib.util.find_spec('peft'); assert 'foretoken.tuner' not in sys.modules\n"
        "from peft import AutoPeftModelForSequenceClassification, PeftModel\n"
        f"model = AutoPeftModelForSequenceClassification.from_pretrained({str(folder)!r})\n"
        f"PeftModel.from_pretrained(model.unload(), {str(folder)!r})"
    )


@pytest.mark.slow
def test_peft_is_imported_although_foretoken_cannot_be(tmp_path):
    said = run(
        "import sys, warnings; warnings.simplefilter('error'); sys.modules['foretoken.tuner'] = None\n"
        "import foretoken\n"
        "with warnings.catch_warnings(record=True) as said: warnings.simplefilter('always'); import peft\n"
        "print([str(one.message) for one in said])"
    )
    assert "peft does not know foretoken's methods" in said


def test_importing_foretoken_alone_imports_no_heavy_library():
    heavy = {"torch", "transformers", "peft", "numpy", "datasets"}
    assert run(f"import sys, foretoken; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_dir_lists_the_public_names():
    assert set(foretoken.__all__) <= set(dir(foretoken))
    assert "PrefixPropagationConfig" in run("import foretoken; print(dir(foretoken))")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "foretoken", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: foretoken VERB")
