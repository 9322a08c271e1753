"""What users order: who may order what, what it would do, and how it is carried out and recorded."""
