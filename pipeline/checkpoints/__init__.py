"""What a checkpoint is, how it is written behind training's back, and where it is kept."""
