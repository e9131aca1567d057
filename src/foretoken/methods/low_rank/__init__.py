"""Low-rank updates of projections, and LoRA of queries and values, also where one map yields both."""
