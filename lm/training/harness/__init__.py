"""What needs lm-evaluation-harness, apart from other modules of training, which are imported together."""
