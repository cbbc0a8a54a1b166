"""Reports of a run of the suite, made from its JSON alone: on the terminal, as a page with plots,
and as a picture."""
