"""Share groups (KIP-932): members, their assignments, and administration of offsets."""
