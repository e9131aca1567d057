"""What a benchmark is asked for, and its parts, each in a process of its own."""
