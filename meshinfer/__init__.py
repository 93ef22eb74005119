"""meshinfer: one language model over the idle AI PCs of an office."""

__version__ = "0.1.0"
