"""Consumer groups of the new protocol (KIP-848), and members of the classic protocol in them."""
