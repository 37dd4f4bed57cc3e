"""KV accounting: block pool, prefix caches. No tensors live here."""
