"""What is measured along a run."""
