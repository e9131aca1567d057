"""Where methods meet backbones, and the only place that touches peft's internals. Importing it registers them."""

from foretoken.tuner.registration import register

register()
