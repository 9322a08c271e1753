"""Users' orders: who may give them, what they would do, and how they are carried out and recorded."""
