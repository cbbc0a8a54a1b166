"""Where share state is saved: in the state store (local), in the log (control), or nowhere
(noop)."""
