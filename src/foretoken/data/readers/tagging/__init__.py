"""Readers of words and their tags: schemes of tags, sentences in tables, texts with spans."""
