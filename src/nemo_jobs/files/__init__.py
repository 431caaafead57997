"""Where the bytes of files lie: a local directory or an object store."""
