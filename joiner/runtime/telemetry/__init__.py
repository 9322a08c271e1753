"""What a runner tells of itself: metrics over HTTP and lines of progress.

May import `task`, `kafka` and `ownership`; nothing rests on what is counted here. Begin with `metrics`.
"""
