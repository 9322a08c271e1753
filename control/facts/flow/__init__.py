"""How much flows through an application's topics, and what is upstream and downstream of it."""
