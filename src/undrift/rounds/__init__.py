"""The loop over rounds; a round of whole models, a round of split ones, and the server step that both have."""
