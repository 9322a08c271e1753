"""Access control: users, roles, sessions, and the checks that every request must pass."""
