"""What the service changes when an operator asks it to."""
