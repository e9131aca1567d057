"""Where the pydocs task finds its texts, and which words would give its labels away."""

from __future__ import annotations

# topic: paths (folders or files, a * where many) below site-packages; one file belongs to one topic
SOURCES: dict[str, tuple[str, ...]] = {
    "data_tables": ("pandas", "pyarrow", "datasets"),
    "language_models": (
        "transformers/generation",
        "transformers/tokenization_*.py",
        "transformers/models/*/tokenization_*.py",
        "transformers/models/*/processing_*.py",
        "tokenizers",
        "torchmetrics/text",
        "torchmetrics/functional/text",
    ),
    "linear_algebra": (
        "scipy/linalg",
        "scipy/sparse",
        "numpy/linalg",
        "numpy/matrixlib",
        "torch/linalg",
        "torch/_lobpcg.py",
        "torch/_linalg_utils.py",
        "sympy/matrices",
    ),
    "machine_learning": (
        "sklearn",
        "torchmetrics/classification",
        "torchmetrics/functional/classification",
        "torchmetrics/clustering",
        "torchmetrics/functional/clustering",
    ),
    "neural_networks": ("torch/nn", "torch/ao/nn"),
    "optimisation": ("scipy/optimize", "torch/optim", "transformers/optimization.py"),
    "signals_and_images": (
        "scipy/signal",
        "scipy/ndimage",
        "scipy/fft",
        "scipy/fftpack",
        "numpy/fft",
        "torch/fft",
        "torch/signal",
        "torchmetrics/image",
        "torchmetrics/functional/image",
        "torchmetrics/audio",
        "torchmetrics/functional/audio",
        "transformers/image_transforms.py",
    ),
    "statistics": ("scipy/stats", "torch/distributions", "numpy/random", "numpy/lib/_histograms_impl.py"),
}
EXCLUDED_FOLDERS = frozenset(
    {"tests", "test", "testing", "_testing", "externals", "_vendored", "csgraph", "_lib", "conftest.py"}
)
PACKAGES = tuple(sorted({path.split("/")[0] for paths in SOURCES.values() for path in paths}))
MASK = "[name]"

_ALIASES = (
    *("np", "sp", "pd", "pa", "pc", "pq", "hf", "xp", "arrow", "sympify", "dataset", "transformer", "tokenizer"),
    *("scikit-learn", "scikit learn", "scikit", "scikits", "pytorch", "hugging face", "huggingface"),
)
_MODULES = (
    *("stats", "distributions", "random", "linalg", "sparse", "matrixlib", "matrices", "lobpcg", "optimize", "optim"),
    *("signal", "ndimage", "fft", "fftpack", "image", "audio", "classification", "clustering", "nn", "generation"),
    *("text", "tokenization", "histograms"),
)
_TOPICS = (
    *("data table", "table", "data frame", "dataframe", "language model", "linear algebra", "linear-algebra"),
    *("machine learning", "machine-learning", "neural network", "neural net", "neural", "optimisation"),
    *("optimization", "optimiser", "optimizer", "statistic", "statistical", "statistics", "probability"),
    *("signal processing", "image processing"),
)
MASKED = tuple(sorted({*PACKAGES, *_ALIASES, *_MODULES, *_TOPICS}, key=lambda word: (-len(word), word)))
