"""How much flows through the topics of an application, and what is before and behind it."""
