"""Between the cells that are to be trained and the machinery that trains them."""
