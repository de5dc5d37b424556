"""Prompting: what a language model writes into a text, or after it, without being trained for it.

networks          any network that predicts tokens, from a reference
texts             marks in texts, special tokens, and texts that fit into a network
filling           the tokens at the masks of a text
writing           continuations and answers
templates         templates with places for texts and answer
config            the settings of prompts for a task
demonstrations    labelled examples before the text
prompter          the prompt of an example, as questions about the tokens of each answer
scoring           how probable each answer is
calibration       what an answer is worth without a text
run               a task, prompted with every template and seed
"""
