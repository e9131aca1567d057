"""Pure tensor maths of attention: no transformers, no peft, no configuration objects."""

from foretoken.attention.contract import Blocks, Window, attend, engines

__all__ = ["Blocks", "Window", "attend", "engines"]
