"""What a call of a candidate needs: its modules with the reference's parameters, and a GPU that is simulated."""
