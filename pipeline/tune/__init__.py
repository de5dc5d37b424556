"""Fine-tuning: the training that turns a checkpoint into scores on tasks.

config            FinetuneConfig: tasks, seeds, and where scores go
forms             a label for a text, a span of a text, or a text for a text: networks, losses, predictions
encoding          single texts and pairs as token ids, padded
trials            the trials of a run, and whether tasks, network and tokenizer fit together
run               everything that a configuration asks for: the trials that are missing, one after another
side_by_side      the same, several at a time in Ray workers
runner            one trial, tracked and recorded
networks          the network of a training, and what parameter-efficient methods trained of it
distillation      the fine-tuned network that a student learns from, and its part of the loss
trainer           one training with Accelerate: order, micro-batches, learning rate, gradients of the global batch
learner           a network with its optimizer, whole or sharded, in one process or several under a launcher
training_state    the place of a training on disk, so that a killed one continues from there
scores            the scores of trials, and their artefact
summary           tables over seeds and searched settings, lists, archives for leaderboards
report            finished scores as people read them: worst errors, one page
preview           what a run would do, with its time
finetuned         fine-tuned networks among scores, and the model that a training starts from
export            exports of fine-tuned networks and of checkpoints
"""
