"""The latency laboratory: parts of tools/lab.py."""
