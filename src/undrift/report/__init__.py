"""Pictures of finished and running runs."""
