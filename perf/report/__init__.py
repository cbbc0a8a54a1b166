"""What a run of the suite found, for people: on the terminal, as a page with plots, and as a
picture. From its JSON alone."""
