"""Does the precision advice close the gap to BF16? Trains, asks for advice, applies it and trains again."""
