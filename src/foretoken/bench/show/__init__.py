"""What was measured, as a page: tables, charts, and the targets beside them."""
