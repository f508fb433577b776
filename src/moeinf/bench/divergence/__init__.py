"""How far the answers of stored models are from those of another: `moeinf compare`."""
