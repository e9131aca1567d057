"""Many adapters of one pretrained model, answering requests together: a store, an engine and an HTTP server."""
