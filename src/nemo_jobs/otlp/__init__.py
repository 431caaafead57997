"""Logs that arrive by OTLP."""
