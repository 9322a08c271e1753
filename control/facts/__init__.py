"""What is known about an application, read continuously from its topics."""
