"""Steps as containers of a Docker engine, spoken to over its HTTP interface."""
