"""Fine-tuning: tasks, metrics, and the training that turns a checkpoint into task scores.

config            FinetuneConfig: tasks, seeds, and where scores go
settings          how one network is trained
task              the interface of a kind of task, and its examples
tasks             one kind of task per file: settings, examples, metrics, evaluation sets
forms             a label for a text, a span of a text, or a text for a text: networks, losses, predictions
files             readers of the published files, for training and for decontamination
evaluation_sets   the texts that pre-training corpora are decontaminated against
metrics           from predictions and right answers to a number
tokenizer         a network's tokenizer, and the special tokens of its sequences
encoding          single texts and pairs as token ids
bulk_encoding     many texts at once, several times faster than by the tokenizer itself
fit               whether tasks, network and tokenizer fit together
workload          everything that is known before the first training starts
distillation      a teacher's probabilities as a part of the loss
batches           order, micro-batches and padding
starting          the weights that a training starts from
processes         one process, or several under a launcher
updates           one update: learning rate, gradients of the global batch
evaluation        the outputs of a network for all evaluation rows
training_state    the place of a training on disk, so that a killed one goes on from there
trainer           one training with Accelerate
trials            the trainings of a workload, tracked and recorded
side_by_side      trainings at the same time, each in a Ray worker
results           finished trainings on disk, so that a killed run continues after them
scores            the scores of trainings
summary           tables over seeds and searched settings
report            finished scores as people read them: worst errors, lists, one page
preview           what a run would do, with its time
reference         the model that a training starts from
adapted           what parameter-efficient methods trained, over a checkpoint
run               everything that a configuration asks for
export            fine-tuned networks, read back; exports of them and of checkpoints
"""
