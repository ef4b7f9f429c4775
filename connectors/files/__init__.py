"""Files as relations: a watched glob turns new, replaced and removed files into changes.

Terms: a listing shows all files of a pattern; the journal records which version of each file was
emitted, up to which row; a piece is a batch of one relation's changes; a file is stable once nobody
seems to be writing it.
"""
