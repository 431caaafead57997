from tests.store.conftest import open_store, postgres, postgres_url, sqlite_url, store, url

__all__ = ["open_store", "postgres", "postgres_url", "sqlite_url", "store", "url"]
