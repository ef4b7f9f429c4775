"""Files as relations: a watched glob tells new, replaced and removed files."""
