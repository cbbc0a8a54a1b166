"""Names that plugins know from version 0.1.0; the coordinators are in kbroker.groups and
kbroker.share_state."""
