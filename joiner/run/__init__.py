"""Everything that can fail or wait: settings, codec, transactions, claim, recovery, loop.

The join itself is in `joiner.core`, which knows nothing of this package.
"""
