"""Hidden states of several streams, which hyper-connections read from and write to, and what else tokens bring."""
