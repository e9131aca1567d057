"""Commands in processes of their own, killed, cut short and given damaged files."""
