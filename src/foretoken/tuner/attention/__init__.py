"""The adapters' part in one attention: score columns, and separate attention to text and prefix."""
