"""A real federation on Flower: data stay at their sites, the algorithms are those of the simulation.

``setup`` writes the folders, ``serve`` and ``join`` start Flower's SuperLink and SuperNode, ``run`` is what
``undrift run`` does, ``engine`` exchanges the messages of a round, ``client_app`` answers them at a site.
"""
