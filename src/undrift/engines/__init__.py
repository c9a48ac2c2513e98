"""Engines map a client's round over a cohort; none of them knows which algorithm it runs."""
