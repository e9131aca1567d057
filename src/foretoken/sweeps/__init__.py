"""Sweeps: many runs from one file, selected by validation, shared among workers through a database."""
