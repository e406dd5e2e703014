"""What Inductor generates for a GPU that is not here."""
