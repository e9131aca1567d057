"""Low-rank updates of projections: the edit itself, and LoRA of queries and values where one map yields both."""
