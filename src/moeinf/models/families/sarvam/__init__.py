"""The blocks of Ling and DeepSeek-V3 under field names of their own."""
