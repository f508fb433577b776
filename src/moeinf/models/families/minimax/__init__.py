"""Lightning attention in the first; then sigmoid routing in every layer, and in M3 chosen blocks of tokens."""
