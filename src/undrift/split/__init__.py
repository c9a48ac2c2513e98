"""Split federated learning: clients train the front of a model, a main server the back.

``algorithms`` says who acts when; ``rounds`` carries it out with a client's ``seat``, the ``main_server`` and the
``messages`` between them.
"""

from undrift.split.algorithms import MiniBatchSfl, SflV1, SflV2, Split
from undrift.split.messages import Gradient, Smashed
from undrift.split.rounds import SplitRounds

__all__ = ["Gradient", "MiniBatchSfl", "SflV1", "SflV2", "Smashed", "Split", "SplitRounds"]
