"""From a configuration to runs: reading it, building its parts, one run, many runs, a comparison."""
