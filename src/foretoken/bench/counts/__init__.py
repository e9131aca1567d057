"""What a pass takes: operations and memory."""
