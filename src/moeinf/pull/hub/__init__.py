"""The Hugging Face Hub: which files a repository has, and how they come here."""
