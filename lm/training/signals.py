"""Interrupts, which reach a run as exceptions that other things raise too."""


def by_signal(error: SystemExit) -> bool:
    """Whether it comes of Ctrl-C or SIGTERM: Lightning turns the one into SystemExit(1), the other into its own."""
    return isinstance(error.__context__, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException"
