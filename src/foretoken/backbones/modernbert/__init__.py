"""ModernBERT: the declaration, and the packed layers."""
