"""Recorded routing, replayed through the cache, the policies and the prefetcher that run live."""
