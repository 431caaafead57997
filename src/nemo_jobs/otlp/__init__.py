"""Log records of other programs, in the two forms of OTLP, as lines that can be stored.

Nothing here waits or looks anything up; everything is meant to run in a thread.
"""
