"""Where does what may wait run? On threads of its own, and never on the event loop."""
