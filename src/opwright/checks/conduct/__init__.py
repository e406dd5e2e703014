"""What a kernel does besides computing: it may deceive whoever measures it."""
