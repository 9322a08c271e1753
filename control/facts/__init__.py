"""What is known of an application, read continuously from its topics."""
