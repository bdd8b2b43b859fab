"""KV blocks: the pool, the prefix index, and the manager that gives them to requests. No torch."""

from paceline.kv_cache.manager import KVCacheManager

__all__ = ["KVCacheManager"]
