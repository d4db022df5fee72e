"""The stages; each is nodes.py and pipeline.py."""
