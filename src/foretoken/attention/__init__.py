"""Pure tensor maths of attention: no transformers, no peft, no configuration objects."""

from foretoken.attention.contract import Window, attend, engines

__all__ = ["Window", "attend", "engines"]
