"""What helps to write operators: findings on their lines, new packages, and checks after each save."""
