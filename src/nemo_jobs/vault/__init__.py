"""What is kept secret: keys, encryption, masking."""
