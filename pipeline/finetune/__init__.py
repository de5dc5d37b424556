"""Fine-tuning: tasks, metrics, and the training that turns a checkpoint into task scores.

config       FinetuneConfig: tasks, seeds, and where scores go
settings     how one network is trained
tasks        one task per file: examples, labels and metrics
metrics      from predicted and gold labels to a number
encoding     text to token ids, as RoBERTa takes single sentences and pairs
batches      order, micro-batches and padding
trainer      one training with Accelerate
results      finished trainings on disk, so that a killed run continues after them
scores       what a training scored, and tables over seeds
run          everything that a configuration asks for
"""
