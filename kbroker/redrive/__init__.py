"""Dead letters: listing them, sending them again, purging them."""
