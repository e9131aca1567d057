"""Reports on run folders: tables, comparisons and figures over seeds, written to one folder."""
