"""Federated learning when the clients data are not alike."""
