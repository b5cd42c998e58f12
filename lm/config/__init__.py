"""Files of settings, and what they build: trees, constructors, keys, the code behind them."""
