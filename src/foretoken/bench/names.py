"""What the candidates of the benchmarks are called in results and reports; imports nothing: reports need no model."""

THEIRS, OURS, UNPACKED = "transformers", "foretoken", "foretoken, unpacked"
CHECKPOINTED = "foretoken, gradient checkpointing"
NONE = "no adapter"
PIPELINE, ENCODE = "transformers' pipeline", "sentence-transformers' encode"
TEXT_METHODS = ("prefix-propagation", "decoupled-prefix")
