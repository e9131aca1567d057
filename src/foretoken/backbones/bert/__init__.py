"""BERT-type encoders with absolute positions: the declaration, and the packed encoder."""
