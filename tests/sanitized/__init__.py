"""The whole product under the sanitizers: `make sanitize`."""
