"""``python -m undrift``."""

from undrift.cli import main

if __name__ == "__main__":
    main()
