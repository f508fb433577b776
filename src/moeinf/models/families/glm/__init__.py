"""Common attention, and blocks of DeepSeek's kind: dense layers first, a score of each expert, some shared."""
