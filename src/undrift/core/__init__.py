"""Vectors, trees, random streams, files: what everything else is made of; nothing here knows of learning."""
