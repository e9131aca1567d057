"""Time and memory beside transformers and peft: one file per benchmark, each part of it in a process of its own."""

BENCHMARKS = {
    "attention": "window + global attention by engine and length, beside transformers' own",
    "encoder": "a Longformer's forward pass and training step, time and memory, beside transformers",
    "methods": "what each method costs beside the same model without an adapter",
    "padding": "training steps over documents of real lengths, beside transformers' padding",
    "families": "the other packed families over documents of real lengths, beside transformers' padding",
    "predict": "short texts from a file to their labels, beside transformers' pipeline and sentence-transformers",
    "export": "an exported encoder in onnxruntime, beside its own forward pass",
    "mixed": "batches in which every document has an adapter of its own, beside one adapter's batch and one by one",
    "serve": "the engine of foretoken serve: adapters in memory, mixed beside single requests, cold adapters, overload",
    "aot": "ahead-of-time P-tuning: its networks and its fused table beside no adapter",
}
