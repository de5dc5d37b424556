"""The forms of tasks, a folder each: network, loss, predictions and metrics.

registry         the forms by name
base             the interface between a form and the trainer
classification   a label or a number for a text or a pair of texts
spans            an answer as a span of a passage, read in sliding windows
tags             a label for every word of a sentence
choices          which of several texts is right
generation       a text for a text
instructions     the responses of conversations

In each folder `settings` holds the form's examples and settings, without heavy imports, and `task` the training.
"""
