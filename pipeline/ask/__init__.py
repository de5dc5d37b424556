"""Questions to a network that is not trained for them: prompting and probing."""
