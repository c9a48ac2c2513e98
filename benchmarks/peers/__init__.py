"""The compared systems, one module each; see ``common`` for what they share."""
