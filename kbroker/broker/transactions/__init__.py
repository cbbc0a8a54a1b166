"""The broker's side of transactions: saves what the coordinator decides, and writes the markers."""
