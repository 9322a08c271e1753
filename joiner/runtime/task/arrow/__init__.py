"""Input and results as Arrow. Needs the extra ``arrow``; imported only if a setting asks for Arrow."""
