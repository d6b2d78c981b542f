"""What all formats share: their errors, and parallel work on one file."""
