"""C++ from the text of Triton's intermediate code, which is read, simplified, and written anew."""
