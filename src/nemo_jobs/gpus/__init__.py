"""The GPUs of this host, as its driver tells of them."""
