"""Files of a results folder: their types, and how they are written, read, checked and locked."""
