"""The pretrained model of a run, and the adapter that it carries."""
