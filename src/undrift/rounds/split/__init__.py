"""Split federated learning: clients train the front of a model, a main server the back.

``rounds`` says who acts when; ``parties`` carries it out with ``client`` and ``main_server``, here or in actors, and
the ``messages`` between them; ``parts`` cuts the model, ``binding`` holds other rules to the clients' part.
"""
