"""What export.py is made of, which is beside this folder."""
