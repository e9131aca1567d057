"""Pure tensor maths of attention: no transformers, no peft, no configuration objects."""

from foretoken.attention.attend import Blocks, Packed, Window, attend, engines, own_weights

__all__ = ["Blocks", "Packed", "Window", "attend", "engines", "own_weights"]
