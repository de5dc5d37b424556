"""Exports of checkpoints and fine-tuned networks to Hugging Face directories."""
