"""The version of moeinf, for rooms below the package's face. pyproject.toml has it, too."""

__version__ = "0.1.0"
