"""What was found out about the methods: scripts, and the records of their runs: ``python -m research.NAME``."""
